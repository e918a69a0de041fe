// Sketches of float64, float32, bfloat16 and float16.

enum : u32 { ZERO_SLOT = 0, FIRST_SLOT = 1, UNDER_SLOT = BINS + 1, OVER_SLOT = BINS + 2 };

// The slot of a finite float64.
__device__ u32 wide_slot(u64 word) {
  if (word + word == 0) return ZERO_SLOT;
  const int bin = (int)(word >> 52 & 2047) - 1023 - FIRST_EXPONENT;
  return bin < 0 ? UNDER_SLOT : bin >= BINS ? OVER_SLOT : FIRST_SLOT + bin;
}

// Sums over a thread's elements: of x, of powers of x - pivot, of |x|, of x with the signs of the
// projection, and of x⁸.
enum { TOTAL, D2, D3, D4, L1, SIGNED, EIGHTH, SUMS };

// x, or -x where the top bit of the weight is set.
__device__ double with_sign(double x, u32 weight) {
  return __longlong_as_double(__double_as_longlong(x) ^ (i64)((u64)(weight & 0x80000000u) << 32));
}

// Of x / 2^100 where x is huge, and of x · 2^125 where it is tiny, the eighth powers are summed up
// apart, as `Table.eighths`.
enum { ORDINARY = -1, HUGE_ONES, TINY_ONES };
constexpr int HUGE_SHIFT = 100, TINY_SHIFT = -125;

// How x is scaled before its eighth power is taken.
struct Scale {
  int which;
  double first, second;  // in two steps: float64's subnormals need more than one factor can hold
};

constexpr Scale ONE = {ORDINARY, 1.0, 1.0};

// Whether elements of which this is the largest need no scale.
template <class K> __device__ bool is_ordinary(typename K::Real largest) {
  return !WIDE<K> && (largest == 0 || (largest >= 0x1p-100f && largest <= 0x1p100f));
}

// The scale of elements of which this is the largest: float64's is that of the whole chunk.
template <class K> __device__ Scale scale_of(double largest) {
  if constexpr (WIDE<K>) {
    const int shift = -exponent_of(largest);
    if (shift == 1200) return {ORDINARY, 1.0, 1.0};
    return {ORDINARY, power_of_two(shift >> 1), power_of_two(shift - (shift >> 1))};
  } else {
    if (largest > 0x1p100) return {HUGE_ONES, 0x1p-100, 1.0};
    if (largest > 0 && largest < 0x1p-100) return {TINY_ONES, 0x1p125, 1.0};
    return {ORDINARY, 1.0, 1.0};
  }
}

// Adds this thread's elements of a tile. IS_PLAIN: all are present, and none needs a scale;
// ABOUT_ZERO: the pivot is 0.
template <class K, bool IS_PIECE, bool IS_PLAIN, bool ABOUT_ZERO>
__device__ void add_elements(const Job& job, const Chunk& chunk, i64 tile, const Keys& keys,
                             const Held<typename K::Bits> (&raw)[PER], u32 present, double pivot,
                             const Scale& scale, Table& table, double (&sums)[SUMS],
                             u64& checksum) {
  using Bits = typename K::Bits;
  constexpr int N = VECTOR<Bits>;
  const Counter slots = counter_at(table.slots);
  double eighth = 0;
  for (int first = 0; first < PER; first += N) {
    u32 weights[N];
    weights_of<IS_PIECE, Bits>(job, chunk, tile, first, keys, weights);
    for (int k = 0; k < N; k++) {
      const int j = first + k;
      checksum += (u64)raw[j] * weights[k];
      if (!IS_PLAIN && !(present >> j & 1)) continue;
      const typename K::Word word = K::word(raw[j]);
      const double x = K::real(word);
      if constexpr (WIDE<K>) {
        count(slots, wide_slot(word));
        if (x < 0) atomicAdd(&table.rare[NEGATIVES], 1u);
        if (word + word != 0 && word << 1 >> 53 == 0) atomicAdd(&table.rare[SUBNORMALS], 1u);
      } else {
        count(slots, word >> 23);
      }
      const double d = ABOUT_ZERO ? x : x - pivot, square = d * d;
      sums[TOTAL] += x;
      sums[D2] += square;
      sums[D3] = fma(square, d, sums[D3]);
      sums[L1] += fabs(x);
      sums[SIGNED] += with_sign(x, weights[k]);
      if constexpr (IS_PLAIN && ABOUT_ZERO) {
        const double fourth = square * square;
        sums[D4] += fourth;
        eighth = fma(fourth, fourth, eighth);
      } else {
        double power = IS_PLAIN ? x : x * scale.first * scale.second;
        power *= power;
        power *= power;
        sums[D4] = fma(square, square, sums[D4]);
        eighth = fma(power, power, eighth);
      }
    }
  }
  if (IS_PLAIN || scale.which == ORDINARY)
    sums[EIGHTH] += eighth;
  else
    table.eighths[scale.which][threadIdx.x] += eighth;
}

template <class K>
__device__ void count_tiny(const Held<typename K::Bits> (&raw)[PER], u32 present, Table& table) {
  for (int j = 0; j < PER; j++) {
    const u32 word = K::word(raw[j]), magnitude = word & 0x7fffffff;
    if ((present >> j & 1) && magnitude && magnitude < 0x800000)
      atomicAdd(&table.tiny[(word >> 31) * 32 + 31 - __clz(magnitude)], 1u);
  }
}

// Adds this thread's elements of a tile, as far as they are `present`. `largest` is that of `survey`.
template <class K, bool IS_PIECE>
__device__ void add_tile(const Job& job, const Chunk& chunk, i64 tile, const Keys& keys,
                         const Held<typename K::Bits> (&raw)[PER], u32 present, double pivot,
                         double largest, Table& table, double (&sums)[SUMS], u64& checksum,
                         Extremes<K>& extremes) {
  const Extremes<K> own = look<K>(raw, present, table.rare);
  extremes.add(own);
  const bool is_plain = present == ALL && is_ordinary<K>(own.largest());
  if (is_plain && pivot == 0)
    add_elements<K, IS_PIECE, !WIDE<K>, true>(job, chunk, tile, keys, raw, ALL, 0, ONE, table, sums,
                                              checksum);
  else if (is_plain)
    add_elements<K, IS_PIECE, !WIDE<K>, false>(job, chunk, tile, keys, raw, ALL, pivot, ONE, table,
                                               sums, checksum);
  else
    add_elements<K, IS_PIECE, false, false>(job, chunk, tile, keys, raw, present, pivot,
                                            scale_of<K>(WIDE<K> ? largest : own.largest()), table,
                                            sums, checksum);
  if constexpr (!WIDE<K>)
    if (own.has_subnormals()) count_tiny<K>(raw, present, table);
}

// Brings this thread's eighth powers to the scale in which the largest magnitude has exponent 0.
template <class K>
__device__ void scale_eighths(const double (&extremes)[3], const Table& table,
                              double (&sums)[SUMS]) {
  if constexpr (WIDE<K>) return;
  const int exponent = exponent_of(fmax(fmax(-extremes[0], -extremes[1]), 0.0));
  sums[EIGHTH] = shifted(sums[EIGHTH], -exponent) +
                 shifted(table.eighths[HUGE_ONES][threadIdx.x], HUGE_SHIFT - exponent) +
                 shifted(table.eighths[TINY_ONES][threadIdx.x], TINY_SHIFT - exponent);
}

// The moments of n elements from sums about a pivot. `extremes` as of `extremes_of`.
__device__ void moments_of(double n, double pivot, const double (&sums)[SUMS],
                           const double (&extremes)[3], double (&moments)[N_MOMENTS]) {
  const double d1 = fma(-n, pivot, sums[TOTAL]);
  const double shift = n > 0 ? d1 / n : 0.0, square = shift * shift;
  const double m2 = sums[D2] - d1 * shift;
  const double m3 = sums[D3] - 3 * shift * sums[D2] + 2 * n * square * shift;
  const double m4 =
      sums[D4] - 4 * shift * sums[D3] + 6 * square * sums[D2] - 3 * n * square * square;
  moments[M_SUM] = sums[TOTAL];
  moments[M_L1] = sums[L1];
  moments[M_M2] = m2 < 0 ? 0.0 : m2;  // by rounding
  moments[M_M3] = m3;
  moments[M_M4] = m4 < 0 ? 0.0 : m4;
  moments[M_S8] = sums[EIGHTH];
  moments[M_PROJECTION] = sums[SIGNED];
  moments[M_MIN] = extremes[0];
  moments[M_MAX] = -extremes[1];
  moments[M_ABS_MIN] = extremes[2];
}

// Writes the histogram of a leaf, and takes the counts that follow from the slots.
template <class K>
__device__ void store_histogram(const Job& job, const Chunk& chunk, const Table& table,
                                Leaf& leaf) {
  constexpr int TINY_BINS = -126 - FIRST_EXPONENT;
  const int thread = threadIdx.x;
  u32 negatives_subnormals_tiny[3] = {};
  auto& [negatives, subnormals, tiny] = negatives_subnormals_tiny;
  for (int bin = thread; bin < BINS; bin += THREADS) {
    u32 found;
    if constexpr (WIDE<K>)
      found = table.slots[FIRST_SLOT + bin];
    else if (bin < TINY_BINS)
      found = table.tiny[bin] + table.tiny[32 + bin];
    else
      found = table.slots[bin - TINY_BINS + 1] + table.slots[256 + bin - TINY_BINS + 1];
    job.histogram[chunk.leaf * BINS + bin] = found;
    if (bin < job.first_normal) subnormals += found;
  }
  if constexpr (!WIDE<K>) {
    for (int field = 1 + thread; field < 256; field += THREADS)
      negatives += table.slots[256 + field];
    if (thread < 64) tiny = table.tiny[thread];
    if (thread >= 32) negatives += tiny;
  }
  across_block<Sum>(negatives_subnormals_tiny);
  leaf.negatives = (u64)negatives + table.rare[NEGATIVES];
  leaf.subnormals = (u64)subnormals + table.rare[SUBNORMALS];
  leaf.zeros = (u64)table.slots[ZERO_SLOT] + (WIDE<K> ? 0 : table.slots[256]) - tiny;
  if constexpr (WIDE<K>) {
    leaf.under = table.slots[UNDER_SLOT];
    leaf.over = table.slots[OVER_SLOT];
  }
}

// What is known of a chunk before it is read: of float64 about the whole, else about its first tile
// that has finite elements.
struct Survey {
  double pivot;     // a number near the mean
  double largest;   // magnitude
  double smallest;  // magnitude that is not zero; 0 if there is none
};
