// bfloat16 has so few values that a block counts how often each is there: an element then takes no
// sums. They follow from the counts, once a block.
//
// Counted are zeros, and what lies in a window of magnitudes (bits without the sign) about the
// largest of the chunk's first tile; the others, few as a rule, are added as those of other dtypes
// are. Two elements, those of a word, are worked on at a time.

constexpr int BELOW_FIRST_TILE = 24;  // binades of a window that are below its smallest magnitude
constexpr i64 WORTH = 2 * BLOCK;  // elements of a chunk for which a window is worth its while
constexpr int FEW = THREADS / 128;  // threads of a tile whose elements may lie outside, as a rule

// A magnitude of zero has place 0, the first of a window place 1. Four counters belong to a place,
// side by side: by sign, and by whether the projection has a minus.
struct Window {
  u32 first, magnitudes;

  // About what lies between two magnitudes, with as many binades below as there is room for.
  __device__ Window(const Job& job, const Survey& known) {
    const int room = (int)job.magnitudes / BINADE, above = room / 12;
    int binades = room, binade = 127 + above + 1 - room;
    if (known.largest > 0) {
      const int top = exponent_of(known.largest), bottom = exponent_of(known.smallest);
      binades = smaller(top - bottom + 1 + above + BELOW_FIRST_TILE, room);
      binade = 127 + top + above + 1 - binades;
    }
    // Eighth powers of what lies between 2^-100 and 2^100 need no scale.
    binade = larger(binade, 127 - 100);
    first = BINADE * (u32)smaller(binade, 127 + 100 - binades);
    magnitudes = BINADE * binades;
  }
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
    const u32 both = 4 * places + combinations;
    if (ALL_INSIDE || window.holds(low)) count(counters, both & 0xffff);
    if (ALL_INSIDE || window.holds(high)) count(counters, both >> 16);
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

// n as float64: half as long as a conversion takes.
__device__ double exactly(int n) {
  return __longlong_as_double(0x4330000080000000ll ^ (i64)(u32)n) - (0x1p52 + 0x1p31);
}

// Elements of one magnitude, by sign and by whether the projection has a minus.
struct Elements {
  uint4 n;

  __device__ explicit Elements(int place) : n(((const uint4*)value_counters)[place]) {}
  __device__ u32 plus() const { return n.x + n.z; }
  __device__ u32 minus() const { return n.y + n.w; }
  __device__ int both() const { return (int)(plus() + minus()); }
  __device__ int difference() const { return (int)(plus() - minus()); }
  __device__ int projected() const { return (int)(n.x - n.z - (n.y - n.w)); }

  // Adds powers of x - pivot to the sums of those.
  __device__ void add_about(double pivot, double x, double (&sums)[SUMS]) const {
    const double a = x - pivot, b = -x - pivot, a2 = a * a, b2 = b * b;
    const double p = exactly((int)plus()), m = exactly((int)minus());
    sums[D2] += p * a2 + m * b2;
    sums[D3] += p * a2 * a + m * b2 * b;
    sums[D4] += p * a2 * a2 + m * b2 * b2;
  }
};

// Sums over those magnitudes of a thread that have been added, as multiples of powers of the last. Each
// is RATIO times the one before: a sum is a polynomial, and takes one operation a magnitude.
struct Polynomials {
  static constexpr double RATIO = 1 << THREADS / BINADE;
  double sums[SUMS] = {};

  __device__ void add(const Elements& elements) {
    constexpr double LESS = 1 / RATIO, SQUARE = LESS * LESS, FOURTH = SQUARE * SQUARE;
    const double n = exactly(elements.both()), difference = exactly(elements.difference());
    sums[TOTAL] = fma(sums[TOTAL], LESS, difference);
    sums[L1] = fma(sums[L1], LESS, n);
    sums[SIGNED] = fma(sums[SIGNED], LESS, exactly(elements.projected()));
    sums[D2] = fma(sums[D2], SQUARE, n);
    sums[D3] = fma(sums[D3], SQUARE * LESS, difference);
    sums[D4] = fma(sums[D4], FOURTH, n);
    sums[EIGHTH] = fma(sums[EIGHTH], FOURTH * FOURTH, n);
  }
  // The last magnitude is x. `about_zero`: those about a pivot, too.
  __device__ void add_to(double (&all)[SUMS], double x, bool about_zero) const {
    const double square = x * x, fourth = square * square;
    all[TOTAL] += sums[TOTAL] * x;
    all[L1] += sums[L1] * x;
    all[SIGNED] += sums[SIGNED] * x;
    all[EIGHTH] += sums[EIGHTH] * (fourth * fourth);
    if (!about_zero) return;
    all[D2] += sums[D2] * square;
    all[D3] += sums[D3] * (square * x);
    all[D4] += sums[D4] * fourth;
  }
};

__device__ u32 across_warp(u32 n) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, n);
#else
  for (int distance = 16; distance; distance /= 2) n += __shfl_xor_sync(~0u, n, distance);
  return n;
#endif
}

// What was counted of a chunk: of most dtypes nothing.
template <class K, bool IS_PIECE> struct Counting {
  static __device__ void clear(const Job&, const Chunk&) {}
  __device__ Counting(const Job&, const Chunk&, const Survey&, u64&) {}
  __device__ i64 first_left(const Chunk& chunk) const { return chunk.start; }
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

  static __device__ bool is_worth(const Job& job, const Chunk& chunk) {
    return job.magnitudes && chunk.address % 16 == 0 && chunk.stop - chunk.start >= WORTH;
  }
  // Before the others are called.
  static __device__ void clear(const Job& job, const Chunk& chunk) {
    if (!is_worth(job, chunk)) return;
    for (int place = threadIdx.x; place <= job.magnitudes; place += THREADS)
      ((uint4*)value_counters)[place] = uint4{0, 0, 0, 0};
  }
  // Adds to the checksum.
  __device__ Counting(const Job& job, const Chunk& chunk, const Survey& known, u64& checksum)
      : window(job, known), start(chunk.start), end(chunk.start) {
    if (!is_worth(job, chunk)) return;
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
    constexpr int AHEAD = 3, VECTORS = BLOCK / VECTOR<u16>;  // tiles on their way; vectors of a block
    const int tiles = (int)((end - start - first + BLOCK - 1) / BLOCK), lanes = 32;
    const uint4* from = vector_at(chunk, start + first);
    Keys keys;
    keys.of_block = 0;
    keys.within = job.within + first + place_of<u16>(0);
    u32 within[PER];
    if constexpr (!IS_PIECE) all_weights<false>(job, chunk, 0, keys, within);
    Words own, waiting[AHEAD];
    for (int i = 0; i < AHEAD; i++)
      if (i < tiles) waiting[i].load(from + i * VECTORS);
    for (int some = 0; some < tiles; some += lanes) {
      const u32 of_lane = block_key((u64)(start / BLOCK + some) + threadIdx.x % lanes) & ~1u;
      for (int n = some; n < smaller(some + lanes, tiles); n++) {
        own = waiting[0];
        for (int i = 1; i < AHEAD; i++) waiting[i - 1] = waiting[i];
        if (n + AHEAD < tiles) waiting[AHEAD - 1].load(from + AHEAD * VECTORS);
        from += VECTORS;
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
  // The first tile of which one of this thread's warp may have something to add.
  __device__ i64 first_left(const Chunk& chunk) const {
    return __any_sync(~0u, left_out != 0) ? chunk.start : end;
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
    const int turns = (window.magnitudes - threadIdx.x + THREADS - 1) / THREADS;  // of a warp alike
    Polynomials polynomials;
    u32 pluses = 0, minuses = 0;  // of which magnitudes there are some, by their turn
    bool is_begun = false;  // few elements are tiny, and of those before the first all sums are zero
    for (int turn = 0; turn < turns; turn++) {
      const Elements elements(1 + threadIdx.x + turn * THREADS);
      const bool any = __any_sync(~0u, elements.both());
      is_begun |= any;
      if (is_begun) polynomials.add(elements);
      if (any) {
        pluses |= (u32)(elements.plus() != 0) << turn;
        minuses |= (u32)(elements.minus() != 0) << turn;
        if (pivot != 0) elements.add_about(pivot, BFloat16::real(magnitude_of(turn) << 16), sums);
        count_binade(table, magnitude_of(turn) / BINADE, elements);
      }
    }
    polynomials.add_to(sums, BFloat16::real(magnitude_of(turns - 1) << 16), pivot == 0);
    if (pluses) add_extremes(extremes, pluses, 0);
    if (minuses) add_extremes(extremes, minuses, 0x80000000);
    if (threadIdx.x == 0) {
      const Elements zeros(0);
      if (zeros.plus()) extremes.add(0, 0);
      if (zeros.minus()) extremes.add(0x80000000, 0x80000000);
      zeros.add_about(pivot, 0, sums);
      table.slots[0] = zeros.plus();
      table.slots[256] = zeros.minus();
    }
    __syncthreads();
  }
  // Of all magnitudes of a warp, which are of one binade.
  __device__ void count_binade(Table& table, u32 binade, const Elements& elements) const {
    const u32 plus = across_warp(elements.plus()), minus = across_warp(elements.minus());
    if (threadIdx.x % 32) return;
    atomicAdd(&table.slots[binade], plus);
    atomicAdd(&table.slots[256 + binade], minus);
  }
  // Of those that a thread adds, which are whole blocks of threads apart.
  __device__ u32 magnitude_of(int turn) const {
    return window.first + threadIdx.x + (u32)turn * THREADS;
  }
  // Of magnitudes by their turn, of which there is one at least.
  __device__ void add_extremes(Extremes<BFloat16>& extremes, u32 turns, u32 sign) const {
    extremes.add(magnitude_of(31 - __clz(turns)) << 16 | sign,
                 magnitude_of(31 - __clz(turns & (0 - turns))) << 16 | sign);
  }
};
