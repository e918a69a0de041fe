// What a sentinel sees: extremes, what is not finite, and of copies the checksum.

// Writes what a sentinel sees of a chunk, once all threads have counted.
__device__ void store_glance(const Job& job, const Chunk& chunk, const u32 (&rare)[RARE],
                             u64 checksum, double least, double most) {
  Leaf leaf;
  u64 total[1] = {checksum};
  across_block<Sum>(total);
  for (int bin = threadIdx.x; bin < BINS; bin += THREADS)
    job.histogram[chunk.leaf * BINS + bin] = 0;
  leaf.checksum = total[0];
  leaf.unbinned = finite_of(chunk, rare);
  leaf.moments[M_MIN] = least;
  leaf.moments[M_MAX] = most;
  leaf.moments[M_ABS_MIN] = INFINITE;
  leaf.store(job, chunk, rare);
}

// The extremes of a chunk and what is not finite; IS_COMPARED: and its checksum.
template <class K, bool IS_PIECE, bool IS_COMPARED> __device__ void glance(const Job& job) {
  using Bits = typename K::Bits;
  constexpr int N = VECTOR<Bits>;
  __shared__ u32 rare[RARE];
  const Chunk chunk = chunk_of(job);
  const Bits* from = (const Bits*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  u64 checksum = 0;
  double found[3];
  Keys keys;
  Extremes<K> extremes;
  clear_rare(rare);
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    Held<Bits> raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    extremes.add(look<K>(raw, present, rare));
    if constexpr (IS_COMPARED && !IS_PIECE) keys.move_to(job, tile, place_of<Bits>(0));
    if constexpr (IS_COMPARED)
      for (int first = 0; first < PER; first += N) {
        u32 weights[N];
        weights_of<IS_PIECE, Bits>(job, chunk, tile, first, keys, weights);
        for (int k = 0; k < N; k++) checksum += (u64)raw[first + k] * weights[k];
      }
  }
  extremes_of(extremes, found);
  store_glance(job, chunk, rare, checksum, found[0], -found[1]);
}

template <bool IS_PIECE, bool IS_COMPARED> __device__ void glance_at_the_bytes(const Job& job) {
  __shared__ Table table;
  const Chunk chunk = chunk_of(job);
  u64 checksum = 0;
  count_bytes<IS_PIECE, IS_COMPARED>(job, chunk, table, checksum);
  const Byte byte(job, table);
  double found[2] = {byte.least, -byte.most};
  across_block<Least>(found);
  store_glance(job, chunk, table.rare, checksum, found[0], -found[1]);
}
