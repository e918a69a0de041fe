// The sketch of a chunk of numbers.

// Surveys a chunk. Σ (x - mean)² is at least n₁ times the square of the distance between the mean and
// that of n₁ of the elements: so few bits are lost when sums about the one become central moments.
// Where the mean of those is at most twice their standard deviation, zero is near enough: it costs
// three bits more. While the first tile is on its way, all counters are cleared.
template <class K, bool IS_PIECE>
__device__ Survey survey(const Job& job, const Chunk& chunk, const typename K::Bits* from,
                         bool aligned, Table& table) {
  using Word = typename K::Word;
  double totals[3] = {0, 0, 0};
  Word words[2] = {0, 0};  // of the extremes
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    Held<typename K::Bits> raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    if (tile == chunk.start) {
      table.clear();
      Counting<K, IS_PIECE>::clear(job, chunk);
    }
    const Extremes<K> found = look<K>(raw, present, table.ignored);
    words[0] = larger(words[0], found.largest_twice());
    words[1] = larger(words[1], found.smallest);
    for (int j = 0; j < PER; j++) {
      if (!(present >> j & 1)) continue;
      const double x = K::real(K::word(raw[j]));
      totals[0] += x;
      totals[2] = fma(x, x, totals[2]);
    }
    totals[1] += __popc(present);
    if constexpr (!WIDE<K>) {
      across_block<Sum>(totals);
      if (totals[1] > 0) break;
    }
  }
  if constexpr (WIDE<K>) across_block<Sum>(totals);
  if constexpr (WIDE<K> || K::IS_COUNTED) across_block<Most>(words);
  double pivot = totals[1] > 0 ? totals[0] / totals[1] : 0.0;
  if (!WIDE<K> && 5 * pivot * pivot * totals[1] <= 4 * totals[2]) pivot = 0;
  return {pivot, K::real(words[0] >> 1), K::real((Word)(0 - words[1]) >> 1)};
}

template <class K, bool IS_PIECE> __device__ void sketch(const Job& job) {
  using Bits = typename K::Bits;
  __shared__ Table table;
  const Chunk chunk = chunk_of(job);
  const Bits* from = (const Bits*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  double found[3], sums[SUMS] = {};
  u64 checksum[1] = {};
  const Survey known = survey<K, IS_PIECE>(job, chunk, from, aligned, table);
  const double pivot = known.pivot;
  const Counting<K, IS_PIECE> counting(job, chunk, known, checksum[0]);
  Keys keys;
  Extremes<K> extremes;
  counting.add_to(table, pivot, sums, extremes);
  for (i64 tile = counting.first_left(chunk); tile < chunk.stop; tile += TILE) {
    if (counting.is_whole(tile)) continue;
    Held<Bits> raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    if constexpr (!IS_PIECE) keys.move_to(job, tile, place_of<Bits>(0));
    const u64 before = checksum[0];  // which has the elements of counted tiles already
    if (counting.has(tile)) present = counting.left_out_of(raw);
    add_tile<K, IS_PIECE>(job, chunk, tile, keys, raw, present, pivot, known.largest, table,
                          sums, checksum[0], extremes);
    if (counting.has(tile)) checksum[0] = before;
  }
  __syncthreads();
  Leaf leaf;
  store_histogram<K>(job, chunk, table, leaf);
  across_block<Sum>(checksum);
  extremes_of(extremes, found);
  scale_eighths<K>(found, table, sums);
  across_block<Sum>(sums);
  if (threadIdx.x == 0)
    moments_of((double)finite_of(chunk, table.rare), pivot, sums, found, leaf.moments);
  leaf.checksum = checksum[0];
  leaf.store(job, chunk, table.rare);
}
