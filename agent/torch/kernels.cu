// Sketches in CUDA C: one block of threads reads one chunk of a tensor, another merges chunks.
//
// NVRTC compiles this where it is used; ahead of it stand the constants of `cuda_launch.source`.
// Counters of the histogram are copied, one copy for every second lane, so that its speed does not
// depend on the data: lanes that count the same exponent do not wait for each other. Sums are
// float64 and use no atomics: the same tensors give the same bits again.
//
// A thread holds PER elements at a time, and goes through them twice: first for their extremes and
// for what is not finite, then for the rest. Where all are finite, neither way has a branch.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

constexpr int WARPS = THREADS / 32;
constexpr int PER = 16;
constexpr int TILE = THREADS * PER;  // divides BLOCK: the elements of a tile have one block's key
constexpr u32 ALL = (1u << PER) - 1;
constexpr int SLOTS = 512;
constexpr int COPIES = 16;
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
static_assert(BLOCK % TILE == 0 && BINS + 3 <= SLOTS, "A tile lies in a block, and bins have slots.");

// What to read, and where to: see `cuda_launch.Job`.
struct Job {
  const i64* work;
  u64 address;
  i64 length, size, leaf, origin, run, pitch;
  const u32* within;
  const double* values;
  i64* counts;
  double* moments;
  u64* checksum;
  i64* histogram;
  i64 first_normal;
};

// Elements start … stop - 1 of the tensor at an address, and their place in the whole.
struct Chunk {
  u64 address;
  i64 start, stop, leaf, origin, run, pitch;
};

__device__ Chunk chunk_of(const Job& job) {
  if (job.work) {
    const i64* row = job.work + WORK * (i64)blockIdx.x;
    return {(u64)row[0], row[1], row[2], row[3], row[4], row[5], row[6]};
  }
  const i64 start = blockIdx.x * job.size;
  const i64 stop = start + job.size < job.length ? start + job.size : job.length;
  return {job.address, start, stop, job.leaf + blockIdx.x, job.origin, job.run, job.pitch};
}

// Elements as words from which their sign and exponent can be read.
struct Float32 {
  using Bits = u32;
  using Word = u32;
  using Real = float;
  static __device__ u32 word(u32 bits) { return bits; }
  static __device__ float real(u32 word) { return __uint_as_float(word); }
};

struct BFloat16 : Float32 {
  using Bits = u16;
  static __device__ u32 word(u16 bits) { return (u32)bits << 16; }
};

struct Float16 : Float32 {
  using Bits = u16;
  static __device__ u32 word(u16 bits) { return __float_as_uint(half_to_float(bits)); }
};

struct Float64 {
  using Bits = u64;
  using Word = u64;
  using Real = double;
  static __device__ u64 word(u64 bits) { return bits; }
  static __device__ double real(u64 word) { return __longlong_as_double((i64)word); }
};

template <class K> constexpr bool WIDE = sizeof(typename K::Word) == 8;
template <class K> constexpr int FRACTION_BITS = WIDE<K> ? 52 : 23;
// Twice the bits of the magnitude of infinity: words are compared without their sign.
template <class K>
constexpr typename K::Word INFINITE_TWICE = (typename K::Word)(WIDE<K> ? 2047 : 255)
                                            << (FRACTION_BITS<K> + 1);

struct Sum {
  template <class T> static __device__ T of(T a, T b) { return a + b; }
};
struct Least {
  template <class T> static __device__ T of(T a, T b) { return b < a ? b : a; }
};

// Unites the N numbers of all threads; every thread has what comes out.
template <class Op, class T, int N> __device__ void across_block(T (&v)[N]) {
  __shared__ T parts[WARPS][N];
  __syncthreads();
  for (int i = 0; i < N; i++) {
    for (int distance = 16; distance; distance /= 2)
      v[i] = Op::of(v[i], __shfl_xor_sync(0xffffffffu, v[i], distance));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][i] = v[i];
  }
  __syncthreads();
  for (int i = 0; i < N; i++) {
    v[i] = parts[0][i];
    for (int warp = 1; warp < WARPS; warp++) v[i] = Op::of(v[i], parts[warp][i]);
  }
}

// floor(log2) of a float64 that is not negative; -1200 of zero.
__device__ int exponent_of(double magnitude) {
  if (!(magnitude > 0)) return -1200;
  const bool tiny = magnitude < 2.2250738585072014e-308;
  const u64 bits = __double_as_longlong(tiny ? magnitude * 18014398509481984.0 : magnitude);
  return (int)(bits >> 52 & 2047) - 1023 - (tiny ? 54 : 0);
}

// 2^exponent, of the normal numbers of float64.
__device__ double power_of_two(int exponent) {
  return __longlong_as_double((i64)(exponent + 1023) << 52);
}

// s8 · 2^(8 exponent), for exponents of any size where s8 is 0, and where what comes out is.
__device__ double shifted(double s8, int exponent) {
  const int power = 8 * exponent;
  return s8 * power_of_two(power < -1022 ? -1022 : power > 1023 ? 1023 : power);
}

// `sketch.elements.block_key`.
__device__ u32 block_key(u64 block) {
  u64 z = block + 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return (u32)((z ^ z >> 31) >> 32);
}

// `sketch.elements.element_hash` | 1 of N elements in a row: the weights in the checksum, whose top
// bit is set where the projection has a minus. The first of them is element `place` of a tile, whose
// block's key is `of_block` where the tensor is no piece; N divides `place`.
template <bool IS_PIECE, int N>
__device__ void weights_of(const Job& job, const Chunk& chunk, i64 tile, int place, u32 of_block,
                           u32 (&weights)[N]) {
  if constexpr (!IS_PIECE) {
    const u32* within = job.within + (u32)tile % BLOCK + place;
    for (int k = 0; k < N; k += 2) {
      const uint2 two = __ldg((const uint2*)(within + k));
      weights[k] = (two.x ^ of_block) | 1;
      weights[k + 1] = (two.y ^ of_block) | 1;
    }
  } else {
    const i64 first = tile + place, run = first < chunk.run ? 0 : first / chunk.run;
    i64 in_run = first - run * chunk.run;
    u64 index = (u64)(chunk.origin + run * chunk.pitch + in_run), block = index / BLOCK;
    of_block = block_key(block);
    for (int k = 0; k < N; k++) {
      weights[k] = (__ldg(job.within + index % BLOCK) ^ of_block) | 1;
      index++;
      if (++in_run == chunk.run) {
        in_run = 0;
        index += (u64)(chunk.pitch - chunk.run);
      }
      if (index / BLOCK != block) {
        block = index / BLOCK;
        of_block = block_key(block);
      }
    }
  }
}

// The elements of a vector of 16 bytes: a thread reads one, the next thread the next.
template <class Bits> constexpr int VECTOR = 16 / sizeof(Bits);

// Where element j of this thread lies in a tile.
template <class Bits> __device__ int place_of(int j) {
  constexpr int N = VECTOR<Bits>;
  return (j / N * THREADS + (int)threadIdx.x) * N + j % N;
}

// Reads this thread's elements of a tile of which `left` are there, the others become 0; says which
// are there, as bits.
template <class Bits>
__device__ u32 load(const Bits* tile, i64 left, bool aligned, Bits (&raw)[PER]) {
  if (aligned && left >= TILE) {
    for (int j = 0; j < PER; j += VECTOR<Bits>) {
      union {
        uint4 words;
        Bits elements[VECTOR<Bits>];
      } vector;
      vector.words = __ldcs((const uint4*)(tile + place_of<Bits>(j)));
      for (int k = 0; k < VECTOR<Bits>; k++) raw[j + k] = vector.elements[k];
    }
    return ALL;
  }
  u32 inside = 0;
  for (int j = 0; j < PER; j++) {
    raw[j] = 0;
    if (place_of<Bits>(j) < left) {
      raw[j] = tile[place_of<Bits>(j)];
      inside |= 1u << j;
    }
  }
  return inside;
}

// What is rare, or of float64 alone: a block counts it together, and no thread has registers for it.
enum { NANS, ABOVE, BELOW, NEGATIVES, SUBNORMALS, RARE };

__device__ void clear_rare(u32 (&rare)[RARE]) {
  __syncthreads();
  if (threadIdx.x < RARE) rare[threadIdx.x] = 0;
  __syncthreads();
}

// The extremes of finite elements. `smallest` is twice the bits of the smallest magnitude, less 1:
// so that zero is the largest of them.
template <class K> struct Extremes {
  typename K::Real least = (typename K::Real)INFINITE, most = -(typename K::Real)INFINITE;
  typename K::Word smallest = ~(typename K::Word)0;

  __device__ void add(typename K::Word word) {
    least = fmin(least, K::real(word));
    most = fmax(most, K::real(word));
    smallest = word + word - 1 < smallest ? word + word - 1 : smallest;
  }
  __device__ void add(const Extremes& other) {
    least = fmin(least, other.least);
    most = fmax(most, other.most);
    smallest = other.smallest < smallest ? other.smallest : smallest;
  }
  // Of no element -infinity.
  __device__ typename K::Real largest() const { return fmax(-least, most); }
  __device__ bool has_subnormals() const {
    return smallest < ((typename K::Word)2 << FRACTION_BITS<K>) - 1;
  }
};

// The extremes of this thread's elements; takes those that are not finite from `present`.
template <class K>
__device__ Extremes<K> look(const typename K::Bits (&raw)[PER], u32& present, u32 (&rare)[RARE]) {
  Extremes<K> found;
  typename K::Real total = 0;
  for (int j = 0; j < PER; j++) {
    const typename K::Word word = K::word(raw[j]);
    total += fabs(K::real(word));
    found.add(word);
  }
  if (present == ALL && total < (typename K::Real)INFINITE) return found;
  found = Extremes<K>();
  for (int j = 0; j < PER; j++) {
    if (!(present >> j & 1)) continue;
    const typename K::Word word = K::word(raw[j]);
    if (word + word < INFINITE_TWICE<K>) {
      found.add(word);
      continue;
    }
    present &= ~(1u << j);
    atomicAdd(&rare[word + word > INFINITE_TWICE<K> ? NANS : K::real(word) > 0 ? ABOVE : BELOW], 1u);
  }
  return found;
}

// What a block counts. Of float32 and narrower, slot `sign, exponent field` counts elements, and
// `tiny` by exponent those of the field 0 that are not zero; of float64, slots are as `wide_slot`
// has them; of bytes, slot `top bit of the weight, byte`.
struct Table {
  u32 copied[SLOTS * COPIES];
  u32 slots[SLOTS];
  u32 tiny[64];
  u32 bins[BINS];
  u32 rare[RARE];
  double eighths[2][THREADS];

  __device__ void clear() {
    for (int i = threadIdx.x; i < SLOTS * COPIES; i += THREADS) copied[i] = 0;
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    if (threadIdx.x < 64) tiny[threadIdx.x] = 0;
    eighths[0][threadIdx.x] = eighths[1][threadIdx.x] = 0;
    clear_rare(rare);
  }
  __device__ void count(u32 slot) {
    atomicAdd(&copied[slot * COPIES + threadIdx.x % COPIES], 1u);
  }
  __device__ void unite_copies() {
    __syncthreads();
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
      u32 total = 0;
      for (int i = 0; i < COPIES; i++) total += copied[slot * COPIES + (slot + i) % COPIES];
      slots[slot] = total;
    }
    __syncthreads();
  }
};

enum : u32 { ZERO_SLOT = 0, FIRST_SLOT = 1, UNDER_SLOT = BINS + 1, OVER_SLOT = BINS + 2 };

// The slot of a finite float64.
__device__ u32 wide_slot(u64 word) {
  if (word + word == 0) return ZERO_SLOT;
  const int bin = (int)(word >> 52 & 2047) - 1023 - FIRST_EXPONENT;
  return bin < 0 ? UNDER_SLOT : bin >= BINS ? OVER_SLOT : FIRST_SLOT + bin;
}

// Sums over a thread's elements: of powers of x - pivot, of |x|, of x where the projection has a
// minus, and of x⁸.
enum { D1, D2, D3, D4, L1, MINUS, EIGHTH, SUMS };

// Of x / 2^100 where x is huge, and of x · 2^125 where it is tiny, the eighth powers are summed up
// apart, as `Table.eighths`.
enum { ORDINARY = -1, HUGE_ONES, TINY_ONES };
constexpr int HUGE_SHIFT = 100, TINY_SHIFT = -125;

// How x is scaled before its eighth power is taken.
struct Scale {
  int which;
  double first, second;  // in two steps: float64's subnormals need more than one factor can hold
};

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

// Adds this thread's elements of a tile. IS_PLAIN: all are present, and none needs a scale.
template <class K, bool IS_PIECE, bool IS_PLAIN>
__device__ void add_elements(const Job& job, const Chunk& chunk, i64 tile,
                             const typename K::Bits (&raw)[PER], u32 present, double pivot,
                             const Scale& scale, Table& table, double (&sums)[SUMS],
                             u64& checksum) {
  using Bits = typename K::Bits;
  constexpr int N = VECTOR<Bits>;
  const u32 of_block = block_key(tile / BLOCK);
  double eighth = 0;
  for (int first = 0; first < PER; first += N) {
    u32 weights[N];
    weights_of<IS_PIECE>(job, chunk, tile, place_of<Bits>(first), of_block, weights);
    for (int k = 0; k < N; k++) {
      const int j = first + k;
      checksum += (u64)raw[j] * weights[k];
      if (!IS_PLAIN && !(present >> j & 1)) continue;
      const typename K::Word word = K::word(raw[j]);
      const double x = K::real(word);
      if constexpr (WIDE<K>) {
        table.count(wide_slot(word));
        if (x < 0) atomicAdd(&table.rare[NEGATIVES], 1u);
        if (word + word != 0 && word << 1 >> 53 == 0) atomicAdd(&table.rare[SUBNORMALS], 1u);
      } else {
        table.count(word >> 23);
      }
      const double d = x - pivot, square = d * d;
      sums[D1] += d;
      sums[D2] += square;
      sums[D3] = fma(square, d, sums[D3]);
      sums[D4] = fma(square, square, sums[D4]);
      sums[L1] += fabs(x);
      sums[MINUS] += weights[k] >> 31 ? x : 0.0;
      double power = IS_PLAIN ? x : x * scale.first * scale.second;
      power *= power;
      power *= power;
      eighth = fma(power, power, eighth);
    }
  }
  if (IS_PLAIN || scale.which == ORDINARY)
    sums[EIGHTH] += eighth;
  else
    table.eighths[scale.which][threadIdx.x] += eighth;
}

template <class K>
__device__ void count_tiny(const typename K::Bits (&raw)[PER], u32 present, Table& table) {
  for (int j = 0; j < PER; j++) {
    const u32 word = K::word(raw[j]), magnitude = word & 0x7fffffff;
    if ((present >> j & 1) && magnitude && magnitude < 0x800000)
      atomicAdd(&table.tiny[(word >> 31) * 32 + 31 - __clz(magnitude)], 1u);
  }
}

// A number near the mean, and the largest magnitude: of float64 of the whole chunk, else of its
// first tile that has finite elements. Σ (x - mean)² is at least n₁ times the square of the distance
// between the mean and that of n₁ of the elements: so few bits are lost when sums about the one
// become central moments.
template <class K>
__device__ void survey(const Chunk& chunk, const typename K::Bits* from, bool aligned,
                       u32 (&rare)[RARE], double& pivot, double& largest) {
  double totals[2] = {0, 0}, most[1] = {0};
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    typename K::Bits raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    const Extremes<K> found = look<K>(raw, present, rare);
    most[0] = fmin(most[0], -(double)found.largest());
    for (int j = 0; j < PER; j++)
      if (present >> j & 1) totals[0] += K::real(K::word(raw[j]));
    totals[1] += __popc(present);
    if constexpr (!WIDE<K>) {
      across_block<Sum>(totals);
      if (totals[1] > 0) break;
    }
  }
  if constexpr (WIDE<K>) {
    across_block<Sum>(totals);
    across_block<Least>(most);
  }
  pivot = totals[1] > 0 ? totals[0] / totals[1] : 0.0;
  largest = -most[0];
}

// What is known of a chunk, but for its histogram.
struct Leaf {
  u64 checksum = 0, zeros = 0, negatives = 0, subnormals = 0, under = 0, over = 0, unbinned = 0;
  double moments[N_MOMENTS] = {};

  // Writes it: the first thread does.
  __device__ void store(const Job& job, const Chunk& chunk, const u32 (&rare)[RARE]) const {
    if (threadIdx.x != 0) return;
    i64* counts = job.counts + chunk.leaf * N_COUNTS;
    counts[C_COUNT] = chunk.stop - chunk.start;
    counts[C_NAN] = rare[NANS];
    counts[C_POS_INF] = rare[ABOVE];
    counts[C_NEG_INF] = rare[BELOW];
    counts[C_ZERO] = zeros;
    counts[C_NEGATIVE] = negatives;
    counts[C_SUBNORMAL] = subnormals;
    counts[C_UNDER] = under;
    counts[C_OVER] = over;
    counts[C_UNBINNED] = unbinned;
    counts[C_UNSEEN] = 0;
    for (int i = 0; i < N_MOMENTS; i++) job.moments[chunk.leaf * N_MOMENTS + i] = moments[i];
    job.checksum[chunk.leaf] = checksum;
  }
};

// How many of a chunk are finite, once all threads have counted.
__device__ u64 finite_of(const Chunk& chunk, const u32 (&rare)[RARE]) {
  return chunk.stop - chunk.start - rare[NANS] - rare[ABOVE] - rare[BELOW];
}

// The finite extremes of all threads: least, -most and the smallest magnitude that is not zero.
template <class K> __device__ void extremes_of(const Extremes<K>& own, double (&found)[3]) {
  using Word = typename K::Word;
  found[0] = own.least;
  found[1] = -own.most;
  const bool none = own.smallest == ~(Word)0;
  found[2] = none ? INFINITE : (double)K::real((Word)(own.smallest + 1) >> 1);
  across_block<Least>(found);
}

// The moments of n elements from sums about a pivot. `extremes` as of `extremes_of`; `eighths` as
// of `Table`.
template <class K>
__device__ void moments_of(double n, double pivot, const double (&sums)[SUMS],
                           const double (&eighths)[2], const double (&extremes)[3],
                           double (&moments)[N_MOMENTS]) {
  const double shift = n > 0 ? sums[D1] / n : 0.0, square = shift * shift;
  const double m2 = sums[D2] - sums[D1] * shift;
  const double m3 = sums[D3] - 3 * shift * sums[D2] + 2 * n * square * shift;
  const double m4 =
      sums[D4] - 4 * shift * sums[D3] + 6 * square * sums[D2] - 3 * n * square * square;
  const int exponent = exponent_of(fmax(fmax(-extremes[0], -extremes[1]), 0.0));
  moments[M_SUM] = fma(n, pivot, sums[D1]);
  moments[M_L1] = sums[L1];
  moments[M_M2] = m2 < 0 ? 0.0 : m2;  // by rounding
  moments[M_M3] = m3;
  moments[M_M4] = m4 < 0 ? 0.0 : m4;
  moments[M_S8] = sums[EIGHTH];
  if constexpr (!WIDE<K>)
    moments[M_S8] = shifted(sums[EIGHTH], -exponent) +
                    shifted(eighths[HUGE_ONES], HUGE_SHIFT - exponent) +
                    shifted(eighths[TINY_ONES], TINY_SHIFT - exponent);
  moments[M_PROJECTION] = moments[M_SUM] - 2 * sums[MINUS];
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
  u64 negatives_subnormals_tiny[3] = {};
  auto& [negatives, subnormals, tiny] = negatives_subnormals_tiny;
  for (int bin = thread; bin < BINS; bin += THREADS) {
    u64 found;
    if constexpr (WIDE<K>)
      found = table.slots[FIRST_SLOT + bin];
    else if (bin < TINY_BINS)
      found = table.tiny[bin] + table.tiny[32 + bin];
    else
      found = (u64)table.slots[bin - TINY_BINS + 1] + table.slots[256 + bin - TINY_BINS + 1];
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
  leaf.negatives = negatives + table.rare[NEGATIVES];
  leaf.subnormals = subnormals + table.rare[SUBNORMALS];
  leaf.zeros = (u64)table.slots[ZERO_SLOT] + (WIDE<K> ? 0 : table.slots[256]) - tiny;
  if constexpr (WIDE<K>) {
    leaf.under = table.slots[UNDER_SLOT];
    leaf.over = table.slots[OVER_SLOT];
  }
}

// The sketch of a chunk of numbers.
template <class K, bool IS_PIECE> __device__ void sketch(const Job& job) {
  using Bits = typename K::Bits;
  __shared__ Table table;
  const Chunk chunk = chunk_of(job);
  const Bits* from = (const Bits*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  double pivot, largest, sums[SUMS] = {};
  u64 checksum[1] = {};
  Extremes<K> extremes;
  survey<K>(chunk, from, aligned, table.rare, pivot, largest);
  table.clear();
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    Bits raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    const Extremes<K> own = look<K>(raw, present, table.rare);
    const Scale scale = scale_of<K>(WIDE<K> ? largest : own.largest());
    extremes.add(own);
    if (!WIDE<K> && present == ALL && scale.which == ORDINARY)
      add_elements<K, IS_PIECE, true>(job, chunk, tile, raw, present, pivot, scale, table, sums,
                                      checksum[0]);
    else
      add_elements<K, IS_PIECE, false>(job, chunk, tile, raw, present, pivot, scale, table, sums,
                                       checksum[0]);
    if constexpr (!WIDE<K>)
      if (own.has_subnormals()) count_tiny<K>(raw, present, table);
  }
  table.unite_copies();
  Leaf leaf;
  double found[3], eighths[2] = {table.eighths[0][threadIdx.x], table.eighths[1][threadIdx.x]};
  store_histogram<K>(job, chunk, table, leaf);
  across_block<Sum>(checksum);
  across_block<Sum>(sums);
  across_block<Sum>(eighths);
  extremes_of(extremes, found);
  const double n = (double)finite_of(chunk, table.rare);
  moments_of<K>(n, pivot, sums, eighths, found, leaf.moments);
  leaf.checksum = checksum[0];
  leaf.store(job, chunk, table.rare);
}

// Counts the bytes of a chunk; IS_KEYED: by the top bit of their weight,
// and sums up the checksum.
template <bool IS_PIECE, bool IS_KEYED>
__device__ void count_bytes(const Job& job, const Chunk& chunk, Table& table, u64& checksum) {
  const u8* from = (const u8*)chunk.address;
  const bool aligned = chunk.address % 16 == 0;
  table.clear();
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    u8 raw[PER];
    u32 weights[PER] = {};
    const u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    if constexpr (IS_KEYED)
      weights_of<IS_PIECE>(job, chunk, tile, place_of<u8>(0), block_key(tile / BLOCK), weights);
    for (int j = 0; j < PER; j++) {
      checksum += (u64)raw[j] * weights[j];
      if (present >> j & 1) table.count(weights[j] >> 31 << 8 | raw[j]);
    }
  }
  table.unite_copies();
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
  Extremes<K> extremes;
  clear_rare(rare);
  for (i64 tile = chunk.start; tile < chunk.stop; tile += TILE) {
    Bits raw[PER];
    u32 present = load(from + tile, chunk.stop - tile, aligned, raw);
    extremes.add(look<K>(raw, present, rare));
    const u32 of_block = block_key(tile / BLOCK);
    if constexpr (IS_COMPARED)
      for (int first = 0; first < PER; first += N) {
        u32 weights[N];
        weights_of<IS_PIECE>(job, chunk, tile, place_of<Bits>(first), of_block, weights);
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

// What to merge, and into what: see `cuda_launch.Merge`.
struct Merge {
  const i64* runs;
  const i64* counts;
  const double* moments;
  const u64* checksum;
  const i64* histogram;
  i64* into_counts;
  double* into_moments;
  u64* into_checksum;
  i64* into_histogram;
};

// How many finite elements are in the sums, of a row of counts.
__device__ double measured(const i64* row) {
  return (double)(row[C_COUNT] - row[C_NAN] - row[C_POS_INF] - row[C_NEG_INF] - row[C_UNBINNED]);
}

// `sketch.table`'s merge of the moments of na and of nb elements, into a.
__device__ void merge_moments(double na, double (&a)[N_MOMENTS], double nb,
                              const double (&b)[N_MOMENTS]) {
  const double n = fmax(na + nb, 1.0);
  double d = b[M_SUM] / fmax(nb, 1.0) - a[M_SUM] / fmax(na, 1.0);
  if (!(na > 0 && nb > 0)) d = 0;
  const double dn = d / n, weight = na * nb / n;
  const double squares = na * na * b[M_M2] + nb * nb * a[M_M2];
  const double fourth = d * dn * dn * d * weight * (na * na - na * nb + nb * nb) +
                        6 * dn * dn * squares + 4 * dn * (na * b[M_M3] - nb * a[M_M3]);
  const double third = d * dn * d * weight * (na - nb) + 3 * dn * (na * b[M_M2] - nb * a[M_M2]);
  const int mine = exponent_of(fmax(fmax(-a[M_MIN], a[M_MAX]), 0.0));
  const int theirs = exponent_of(fmax(fmax(-b[M_MIN], b[M_MAX]), 0.0));
  const int common = mine > theirs ? mine : theirs;
  a[M_S8] = shifted(a[M_S8], mine - common) + shifted(b[M_S8], theirs - common);
  a[M_M4] += b[M_M4] + fourth;
  a[M_M3] += b[M_M3] + third;
  a[M_M2] += b[M_M2] + d * d * weight;
  a[M_SUM] += b[M_SUM];
  a[M_L1] += b[M_L1];
  a[M_PROJECTION] += b[M_PROJECTION];
  a[M_MIN] = fmin(a[M_MIN], b[M_MIN]);
  a[M_MAX] = fmax(a[M_MAX], b[M_MAX]);
  a[M_ABS_MIN] = fmin(a[M_ABS_MIN], b[M_ABS_MIN]);
}

// Merges leaves, one after the other, into one row; each counts as many times as there are copies.
extern "C" __global__ void __launch_bounds__(THREADS) merge_leaves(const Merge job) {
  const i64* run = job.runs + RUN * (i64)blockIdx.x;
  const i64 row = run[0], first = run[1], end = run[2], stride = run[3], copies = run[4];
  i64* counts = job.into_counts + row * N_COUNTS;
  double* moments = job.into_moments + row * N_MOMENTS;
  if (threadIdx.x == 0) {  // before the counts are merged, from which it follows how many there are
    double merged[N_MOMENTS], own[N_MOMENTS], na = measured(counts);
    u64 checksum = job.into_checksum[row];
    for (int i = 0; i < N_MOMENTS; i++) merged[i] = moments[i];
    for (i64 leaf = first; leaf < end; leaf += stride) {
      const double nb = copies * measured(job.counts + leaf * N_COUNTS);
      for (int i = 0; i < N_MOMENTS; i++)
        own[i] = job.moments[leaf * N_MOMENTS + i] * (i <= M_PROJECTION ? copies : 1);
      merge_moments(na, merged, nb, own);
      na += nb;
      checksum += copies * job.checksum[leaf];
    }
    for (int i = 0; i < N_MOMENTS; i++) moments[i] = merged[i];
    job.into_checksum[row] = checksum;
  }
  __syncthreads();
  for (int column = threadIdx.x; column < N_COUNTS + BINS; column += THREADS) {
    const bool is_bin = column >= N_COUNTS;
    const i64* from = is_bin ? job.histogram + column - N_COUNTS : job.counts + column;
    i64* into = is_bin ? job.into_histogram + row * BINS + column - N_COUNTS : counts + column;
    i64 total = *into;
    for (i64 leaf = first; leaf < end; leaf += stride)
      total += copies * from[leaf * (is_bin ? BINS : N_COUNTS)];
    *into = total;
  }
}

#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) name(const Job job) { \
    __VA_ARGS__(job);                                                                        \
  }
#define KERNELS(kind, K)                                         \
  KERNEL(sketch_##kind, sketch<K, false>)                        \
  KERNEL(sketch_piece_##kind, sketch<K, true>)                   \
  KERNEL(glance_##kind, glance<K, false, false>)                 \
  KERNEL(compare_##kind, glance<K, false, true>)                 \
  KERNEL(compare_piece_##kind, glance<K, true, true>)

KERNELS(float64, Float64)
KERNELS(float32, Float32)
KERNELS(bfloat16, BFloat16)
KERNELS(float16, Float16)
KERNEL(sketch_bytes, sketch_the_bytes<false>)
KERNEL(sketch_piece_bytes, sketch_the_bytes<true>)
KERNEL(glance_bytes, glance_at_the_bytes<false, false>)
KERNEL(compare_bytes, glance_at_the_bytes<false, true>)
KERNEL(compare_piece_bytes, glance_at_the_bytes<true, true>)
