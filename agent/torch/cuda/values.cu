// bfloat16 has so few values that a block counts how often each is there: an element then takes no
// sums. They follow from the counts, once a block.
//
// Counted are zeros, and what lies in a window of magnitudes (bits without the sign) about the
// largest of the chunk's first tile; the others, few as a rule, are added as those of other dtypes
// are. Two elements, those of a word, are worked on at a time.

constexpr int HEADROOM = 2;  // binades of a window that are above the largest element seen so far
constexpr i64 WORTH = 4 * TILE;  // elements of a chunk for which a window is worth its while
constexpr int FEW = THREADS / 128;  // threads of a tile whose elements may lie outside, as a rule

// A magnitude of zero has place 0, the first of a window place 1. Four counters belong to a place:
// by sign, and by whether the projection has a minus.
struct Window {
  u32 first, magnitudes, of_combination;  // bytes of counters of one combination

  __device__ Window(const Job& job, double largest) {
    magnitudes = (u32)job.magnitudes;
    of_combination = 4 * places();
    const int binades = magnitudes / BINADE;
    int binade = 127 + HEADROOM + 1 - binades;
    if (largest > 0) binade += exponent_of(largest);
    // Eighth powers of what lies between 2^-100 and 2^100 need no scale.
    binade = larger(binade, 127 - 100);
    first = BINADE * (u32)smaller(binade, 127 + 100 - binades);
  }
  __device__ int places() const { return magnitudes + 1; }
  __device__ bool holds(u32 bits) const {
    const u32 magnitude = bits & 0x7fff;
    return magnitude == 0 || magnitude - first < magnitudes;
  }
};

__device__ u32 in_both_halves(u32 half) { return half << 16 | (half & 0xffff); }

// Whether all of a thread's elements, two in each word, are counted.
__device__ bool all_inside(const Window& window, const u32 (&words)[PER / 2]) {
  u32 most = 0, least = ~0u;  // of magnitudes less 1, so that zero is none of the least
  for (int i = 0; i < PER / 2; i++) {
    const u32 magnitudes = words[i] & 0x7fff7fffu;
    most = __vmaxu2(most, magnitudes);
    least = __viaddmin_u16x2(magnitudes, ~0u, least);
  }
  return (larger(most & 0xffff, most >> 16) < window.first + window.magnitudes) &
         (smaller(least & 0xffff, least >> 16) + 1 >= window.first);
}

// Counts a thread's elements, which have these weights. ALL_INSIDE: none is left out.
template <bool ALL_INSIDE>
__device__ void count_words(const Window& window, const u32 (&words)[PER / 2],
                            const u32 (&weights)[PER], u64& checksum) {
  const Counter counters = counter_at(value_counters);
  const u32 before_first = in_both_halves(1 - window.first);
  u64 of_high = 0;  // two sums wait half as long for each other
  for (int i = 0; i < PER / 2; i++) {
    const u32 word = words[i], low = word & 0xffff, high = word >> 16;
    checksum += (u64)low * weights[2 * i];
    of_high += (u64)high * weights[2 * i + 1];
    u32 kept = word;  // what is left out has no place, and would take that of its neighbour away
    if (!ALL_INSIDE) kept = (window.holds(low) ? low : 0) | (window.holds(high) ? high << 16 : 0);
    const u32 places = __viaddmax_s16x2(kept & 0x7fff7fffu, before_first, 0);
    const u32 minuses = __byte_perm(weights[2 * i], weights[2 * i + 1], 0x7632);
    const u32 combinations = (kept >> 15 & 0x10001u) | (minuses >> 14 & 0x20002u);
    const u32 bytes = 4 * places + window.of_combination * combinations;
    if (ALL_INSIDE || window.holds(low)) count_at(counters, bytes & 0xffff);
    if (ALL_INSIDE || window.holds(high)) count_at(counters, bytes >> 16);
  }
  checksum += of_high;
}

// A thread's elements of a whole tile.
struct Words {
  union {
    uint4 vectors[PER / VECTOR<u16>];
    u32 words[PER / 2];
  };

  // Those of a tile whose first vector this thread has at an address.
  __device__ void load(const uint4* from) {
    for (int i = 0; i < PER / VECTOR<u16>; i++) vectors[i] = __ldcs(from + i * THREADS);
  }
};

// This thread's first vector of the tile that begins with an element.
__device__ const uint4* vector_at(const Chunk& chunk, i64 element) {
  return (const uint4*)((const u16*)chunk.address + element) + threadIdx.x;
}

// The weights of all of a thread's elements of a tile.
template <bool IS_PIECE>
__device__ void all_weights(const Job& job, const Chunk& chunk, i64 tile, const Keys& keys,
                            u32 (&weights)[PER]) {
  constexpr int N = VECTOR<u16>;
  for (int first = 0; first < PER; first += N) {
    u32 some[N];
    weights_of<IS_PIECE, u16>(job, chunk, tile, first, keys, some);
    for (int k = 0; k < N; k++) weights[first + k] = some[k];
  }
}

// Elements of one magnitude, by sign and by whether the projection has a minus.
struct Elements {
  u32 n[4];

  __device__ explicit Elements(int place, int places) {
    for (int i = 0; i < 4; i++) n[i] = value_counters[i * places + place];
  }
  __device__ u32 plus() const { return n[0] + n[2]; }
  __device__ u32 minus() const { return n[1] + n[3]; }

  // Adds what they do, but for the histogram.
  __device__ void add_to(double (&sums)[SUMS], Extremes<BFloat16>& extremes, u32 magnitude,
                         double pivot) const {
    const u32 word = BFloat16::word(magnitude), negative = BFloat16::word(magnitude | 0x8000);
    if (plus()) extremes.add(word, word);
    if (minus()) extremes.add(negative, negative);
    const double x = BFloat16::real(word), a = x - pivot, b = -x - pivot;
    const double p = plus(), m = minus(), a2 = a * a, b2 = b * b, x4 = x * x * x * x;
    sums[TOTAL] += (p - m) * x;
    sums[L1] += (p + m) * x;
    sums[SIGNED] += (((double)n[0] - n[2]) - ((double)n[1] - n[3])) * x;
    sums[D2] += p * a2 + m * b2;
    sums[D3] += p * a2 * a + m * b2 * b;
    sums[D4] += p * a2 * a2 + m * b2 * b2;
    sums[EIGHTH] += (p + m) * (x4 * x4);
  }
};

__device__ u32 across_warp(u32 n) {
  for (int distance = 16; distance; distance /= 2) n += __shfl_xor_sync(~0u, n, distance);
  return n;
}

// What was counted of a chunk: of most dtypes nothing.
template <class K, bool IS_PIECE> struct Counting {
  __device__ Counting(const Job&, const Chunk&, double, u64&) {}
  __device__ bool has(i64) const { return false; }
  __device__ bool is_whole(i64) const { return false; }
  __device__ u32 left_out_of(const Held<typename K::Bits> (&)[PER]) const { return ALL; }
  __device__ void add_to(Table&, double, double (&)[SUMS], Extremes<K>&) const {}
};

// Of bfloat16 whole tiles, where that is worth its while.
template <bool IS_PIECE> struct Counting<BFloat16, IS_PIECE> {
  const Window window;
  const i64 start;
  i64 end;
  u64 left_out = 0;  // tiles, by their number modulo 64, of which this thread left elements out

  // Adds to the checksum. `largest` is that of `survey`.
  __device__ Counting(const Job& job, const Chunk& chunk, double largest, u64& checksum)
      : window(job, largest), start(chunk.start), end(chunk.start) {
    if (!window.magnitudes || chunk.address % 16 || chunk.stop - start < WORTH) return;
    for (int i = threadIdx.x; i < 4 * window.places(); i += THREADS) value_counters[i] = 0;
    Words own;
    own.load(vector_at(chunk, start));
    if (__syncthreads_count(!all_inside(window, own.words)) > FEW) return;
    end = start + (chunk.stop - start) / TILE * TILE;
    for (int first = 0; first < BLOCK; first += TILE) count_tiles(job, chunk, first, checksum);
    __syncthreads();
  }
  // Counts the tiles that begin so many elements behind the beginning of a block: what is kept of
  // keys within a block is the same for all, and of 32 blocks each lane knows the key of one.
  __device__ void count_tiles(const Job& job, const Chunk& chunk, int first, u64& checksum) {
    const int tiles = (int)((end - start - first + BLOCK - 1) / BLOCK), lanes = 32;
    const uint4* from = vector_at(chunk, start + first);
    Keys keys;
    keys.of_block = 0;
    keys.within = job.within + first + place_of<u16>(0);
    u32 within[PER];
    if constexpr (!IS_PIECE) all_weights<false>(job, chunk, 0, keys, within);
    Words own, next;
    if (tiles > 0) next.load(from);
    for (int some = 0; some < tiles; some += lanes) {
      const u32 of_lane = block_key((u64)(start / BLOCK + some) + threadIdx.x % lanes) & ~1u;
      for (int n = some; n < smaller(some + lanes, tiles); n++) {
        own = next;
        from += BLOCK / VECTOR<u16>;
        if (n + 1 < tiles) next.load(from);
        u32 weights[PER];
        const u32 of_block = __shfl_sync(~0u, of_lane, n % lanes);
        if constexpr (IS_PIECE)
          all_weights<true>(job, chunk, start + first + (i64)n * BLOCK, keys, weights);
        else
          for (int j = 0; j < PER; j++) weights[j] = within[j] ^ of_block;
        if (all_inside(window, own.words)) {
          count_words<true>(window, own.words, weights, checksum);
        } else {
          count_words<false>(window, own.words, weights, checksum);
          left_out |= flag_of(start + first + (i64)n * BLOCK);
        }
      }
    }
  }
  __device__ u64 flag_of(i64 tile) const { return 1ull << ((tile - start) / TILE & 63); }
  __device__ bool has(i64 tile) const { return tile < end; }
  __device__ bool is_whole(i64 tile) const {
    return has(tile) && !(left_out & flag_of(tile));
  }
  // Which of this thread's elements of a tile were not counted.
  __device__ u32 left_out_of(const u32 (&raw)[PER]) const {
    u32 outside = 0;
    for (int j = 0; j < PER; j++)
      if (!window.holds(raw[j])) outside |= 1u << j;
    return outside;
  }
  // Adds what was counted: each thread some magnitudes, and a warp those of one binade.
  __device__ void add_to(Table& table, double pivot, double (&sums)[SUMS],
                         Extremes<BFloat16>& extremes) const {
    if (end == start) return;
    const int thread = threadIdx.x, places = window.places();
    for (int place = 1 + thread; place < places; place += THREADS) {
      const Elements elements(place, places);
      if (!__any_sync(~0u, elements.plus() | elements.minus())) continue;
      const u32 magnitude = window.first + place - 1;
      elements.add_to(sums, extremes, magnitude, pivot);
      const u32 plus = across_warp(elements.plus()), minus = across_warp(elements.minus());
      if (thread % 32 == 0) {
        atomicAdd(&table.slots[magnitude / BINADE], plus);
        atomicAdd(&table.slots[256 + magnitude / BINADE], minus);
      }
    }
    if (thread == 0) {
      const Elements zeros(0, places);
      zeros.add_to(sums, extremes, 0, pivot);
      table.slots[0] = zeros.plus();
      table.slots[256] = zeros.minus();
    }
    __syncthreads();
  }
};
