// Sketches of dtypes of 8 bits: a block counts their bytes.

// Counts the bytes of a chunk; IS_KEYED: by the top bit of their weight, and sums up the checksum.
template <bool IS_PIECE, bool IS_KEYED>
__device__ void count_bytes(const Job& job, const Chunk& chunk, Table& table, u64& checksum) {
  const u8* from = (const u8*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  const Counter slots = counter_at(table.slots);
  Keys keys;
  table.clear();
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    u32 raw[PER];
    u32 weights[PER] = {};
    const u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    if constexpr (IS_KEYED && !IS_PIECE) keys.move_to(job, tile, place_of<u8>(0));
    if constexpr (IS_KEYED) weights_of<IS_PIECE, u8>(job, chunk, tile, 0, keys, weights);
    for (int j = 0; j < PER; j++) {
      checksum += (u64)raw[j] * weights[j];
      if (present == ALL || present >> j & 1)
        count(slots, weights[j] >> 31 << 8 | raw[j]);
    }
  }
  __syncthreads();
}

// What the byte of this thread stands for, if that is finite, and how often it is there.
struct Byte {
  double x, n, least, most, smallest;

  __device__ Byte(const Job& job, Table& table) {
    const u32 times = table.slots[threadIdx.x] + table.slots[256 + threadIdx.x];
    x = job.values[threadIdx.x];
    n = times;
    if (!(fabs(x) < INFINITE)) {
      atomicAdd(&table.rare[x != x ? NANS : x > 0 ? ABOVE : BELOW], times);
      x = n = 0;
    }
    least = n > 0 ? x : INFINITE;
    most = n > 0 ? x : -INFINITE;
    smallest = n > 0 && x != 0 ? fabs(x) : INFINITE;
  }
};

// The sketch of a chunk of bytes: all but the checksum follows from how often each is there.
template <bool IS_PIECE> __device__ void sketch_the_bytes(const Job& job) {
  static_assert(THREADS == 256, "Each thread has a byte.");
  __shared__ Table table;
  const Chunk chunk = chunk_of(job);
  u64 counted[4] = {};
  auto& [checksum, zeros, negatives, subnormals] = counted;
  count_bytes<IS_PIECE, true>(job, chunk, table, checksum);
  const Byte byte(job, table);
  const double x = byte.x, n = byte.n;
  if (n > 0 && x != 0)
    atomicAdd(&table.bins[exponent_of(fabs(x)) - FIRST_EXPONENT], (u32)n);
  zeros = x == 0 ? (u64)n : 0;
  negatives = x < 0 ? (u64)n : 0;
  double found[3] = {byte.least, -byte.most, byte.smallest};
  double totals[4] = {n, n * x, n * fabs(x), 0};
  if (n > 0) totals[3] = x * ((double)table.slots[threadIdx.x] - table.slots[256 + threadIdx.x]);
  across_block<Sum>(totals);
  across_block<Least>(found);
  const double d = x - (totals[0] > 0 ? totals[1] / totals[0] : 0.0);
  const int exponent = exponent_of(fmax(fmax(-found[0], -found[1]), 0.0));
  double power = exponent == -1200 ? 0.0 : x * power_of_two(-exponent);
  power *= power;
  power *= power;
  double central[4] = {n * d * d, n * d * d * d, n * d * d * d * d, n * power * power};
  for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
    job.histogram[chunk.leaf * BINS + bin] = table.bins[bin];
    if (bin < job.first_normal) subnormals += table.bins[bin];
  }
  across_block<Sum>(central);
  across_block<Sum>(counted);
  Leaf leaf;
  leaf.checksum = checksum;
  leaf.zeros = zeros;
  leaf.negatives = negatives;
  leaf.subnormals = subnormals;
  leaf.moments[M_SUM] = totals[1];
  leaf.moments[M_L1] = totals[2];
  leaf.moments[M_M2] = central[0];
  leaf.moments[M_M3] = central[1];
  leaf.moments[M_M4] = central[2];
  leaf.moments[M_S8] = central[3];
  leaf.moments[M_PROJECTION] = totals[3];
  leaf.moments[M_MIN] = found[0];
  leaf.moments[M_MAX] = -found[1];
  leaf.moments[M_ABS_MIN] = found[2];
  leaf.store(job, chunk, table.rare);
}
