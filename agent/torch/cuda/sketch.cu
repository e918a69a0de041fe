// The sketch of a chunk of numbers.

template <class K, bool IS_PIECE> __device__ void sketch(const Job& job) {
  using Bits = typename K::Bits;
  __shared__ Table table;
  const Chunk chunk = chunk_of(job);
  const Bits* from = (const Bits*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  double pivot, largest, found[3], sums[SUMS] = {};
  u64 checksum[1] = {};
  {
    Held<Bits> raw[PER];  // on its way while the table is cleared
    const u32 present = load(from + chunk.start, chunk.stop - chunk.start, aligned, raw);
    table.clear();
    Counting<K, IS_PIECE>::clear(job, chunk);
    survey<K>(chunk, from, aligned, raw, present, table.ignored, pivot, largest);
  }
  const Counting<K, IS_PIECE> counting(job, chunk, largest, checksum[0]);
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
    add_tile<K, IS_PIECE>(job, chunk, tile, keys, raw, present, pivot, largest, table, sums,
                          checksum[0], extremes);
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
