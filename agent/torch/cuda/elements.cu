// Sketches in CUDA C: one block of threads reads one chunk of a tensor, another merges chunks.
//
// NVRTC compiles these files as one, where they are used: those of each `launch.Shape` in their order,
// in a namespace of its own. Ahead of them stand the constants of `launch.source`.
// The histogram is counted in shared memory, where lanes that add 1 to the same counter do not wait
// for each other: its speed does not depend on the data. Sums are float64 and use no atomics: the
// same tensors give the same bits again.
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
#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
static_assert(BLOCK % TILE == 0 && BINS + 3 <= SLOTS, "A tile lies in a block, and bins have slots.");

#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) name(const Job job) { \
    __VA_ARGS__(job);                                                                        \
  }

// What to read, and where to: see `launch.Job`.
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
  i64 magnitudes;
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
  static constexpr bool IS_COUNTED = false;  // by value: see values.cu
  static __device__ u32 word(u32 bits) { return bits; }
  static __device__ float real(u32 word) { return __uint_as_float(word); }
};

struct BFloat16 : Float32 {
  using Bits = u16;
  static constexpr bool IS_COUNTED = true;
  static __device__ u32 word(u32 bits) { return bits << 16; }
};

struct Float16 : Float32 {
  using Bits = u16;
  static __device__ u32 word(u32 bits) { return __float_as_uint(half_to_float((u16)bits)); }
};

struct Float64 {
  using Bits = u64;
  using Word = u64;
  using Real = double;
  static constexpr bool IS_COUNTED = false;
  static __device__ u64 word(u64 bits) { return bits; }
  static __device__ double real(u64 word) { return __longlong_as_double((i64)word); }
};

template <class K> constexpr bool WIDE = sizeof(typename K::Word) == 8;
template <class K> constexpr int FRACTION_BITS = WIDE<K> ? 52 : 23;
// Twice the bits of the magnitude of infinity: words are compared without their sign.
template <class K>
constexpr typename K::Word INFINITE_TWICE = (typename K::Word)(WIDE<K> ? 2047 : 255)
                                            << (FRACTION_BITS<K> + 1);

template <bool IS_FIRST, class A, class B> struct Choice { using Type = A; };
template <class A, class B> struct Choice<false, A, B> { using Type = B; };
template <bool IS_FIRST, class A, class B> using Either = typename Choice<IS_FIRST, A, B>::Type;

struct Sum {
  template <class T> static __device__ T of(T a, T b) { return a + b; }
};
struct Least {
  template <class T> static __device__ T of(T a, T b) { return b < a ? b : a; }
};
struct Most {
  template <class T> static __device__ T of(T a, T b) { return a < b ? b : a; }
};

// Unites the N numbers of all threads; every thread has what comes out. Of two lanes each gives half
// of its numbers away and takes what the other has of the rest, until each lane has one: that takes
// a quarter of the exchanges that it takes to unite eight numbers one after the other.
template <class Op, class T, int N> __device__ void across_block(T (&v)[N]) {
  static_assert(N <= 8);
  constexpr int HELD = N > 4 ? 8 : N > 2 ? 4 : N, LANES = 32 / HELD;
  __shared__ T parts[HELD][WARPS], whole[N];
  const int lane = threadIdx.x % 32;
  T held[HELD];
#pragma unroll
  for (int i = 0; i < HELD; i++) held[i] = v[i < N ? i : 0];
  int distance = 16;
#pragma unroll
  for (int n = HELD / 2; n; n /= 2) {
#pragma unroll
    for (int i = 0; i < n; i++) {
      const bool upper = lane & distance;
      const T given = upper ? held[i] : held[i + n], kept = upper ? held[i + n] : held[i];
      held[i] = Op::of(kept, __shfl_xor_sync(~0u, given, distance));
    }
    distance /= 2;
  }
  for (; distance; distance /= 2)
    held[0] = Op::of(held[0], __shfl_xor_sync(~0u, held[0], distance));
  if (lane % LANES == 0) parts[lane / LANES][threadIdx.x / 32] = held[0];
  __syncthreads();
  if (threadIdx.x < N) {
    T all = parts[threadIdx.x][0];
    for (int warp = 1; warp < WARPS; warp++) all = Op::of(all, parts[threadIdx.x][warp]);
    whole[threadIdx.x] = all;
  }
  __syncthreads();
  for (int i = 0; i < N; i++) v[i] = whole[i];
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

// The elements of a vector of 16 bytes: a thread reads one, the next thread the next.
template <class Bits> constexpr int VECTOR = 16 / sizeof(Bits);

// Where element j of this thread lies in a tile.
template <class Bits> __device__ int place_of(int j) {
  constexpr int N = VECTOR<Bits>;
  return (int)threadIdx.x * N + j / N * N * THREADS + j % N;
}

// What an element is held in: narrow ones are taken out of their vector only once.
template <class Bits> using Held = Either<sizeof(Bits) == 8, u64, u32>;

// Reads this thread's elements of a tile of which `left` are there, the others become 0; says which
// are there, as bits.
template <class Bits>
__device__ u32 load(const Bits* tile, i64 left, bool aligned, Held<Bits> (&raw)[PER]) {
  constexpr int N = VECTOR<Bits>, IN_WORD = sizeof(Held<Bits>) / sizeof(Bits);
  const Bits* first = tile + place_of<Bits>(0);
  if (aligned && left >= TILE) {
    for (int j = 0; j < PER; j += N) {
      union {
        uint4 all;
        Held<Bits> words[N / IN_WORD];
      } vector;
      vector.all = __ldcs((const uint4*)(first + j * THREADS));
      for (int k = 0; k < N; k++) {
        const Held<Bits> word = vector.words[k / IN_WORD];
        raw[j + k] = IN_WORD == 1 ? word : (Bits)(word >> (8 * sizeof(Bits) * (k % IN_WORD)));
      }
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

// What the keys of a tile's elements are made of: the key of its block, and where the others lie.
struct Keys {
  u64 block = ~0ull;
  u32 of_block;
  const u32* within;

  // Of the tile that begins with this element: where tensors are no pieces, a tile has one block.
  __device__ void move_to(const Job& job, i64 tile, int first) {
    if ((u64)tile / BLOCK != block) {
      block = (u64)tile / BLOCK;
      of_block = block_key(block) & ~1u;
    }
    within = job.within + (u32)tile % BLOCK + first;
  }
};

// `sketch.elements.element_hash` | 1 of N elements in a row: the weights in the checksum, whose top
// bit is set where the projection has a minus. The first of them is element `j` of this thread; of
// what is kept `within` a block the last bit is set.
template <bool IS_PIECE, class Bits, int N>
__device__ void weights_of(const Job& job, const Chunk& chunk, i64 tile, int j, const Keys& keys,
                           u32 (&weights)[N]) {
  if constexpr (!IS_PIECE) {
    using Words = Either<N % 4 == 0, uint4, uint2>;
    constexpr int M = sizeof(Words) / 4;
    for (int k = 0; k < N; k += M) {
      union {
        Words words;
        u32 each[M];
      } loaded;
      loaded.words = __ldg((const Words*)(keys.within + j * THREADS + k));
      for (int i = 0; i < M; i++) weights[k + i] = loaded.each[i] ^ keys.of_block;
    }
  } else {
    const i64 first = tile + place_of<Bits>(j), run = first < chunk.run ? 0 : first / chunk.run;
    i64 in_run = first - run * chunk.run;
    u64 index = (u64)(chunk.origin + run * chunk.pitch + in_run), block = index / BLOCK;
    u32 of_block = block_key(block) & ~1u;
    for (int k = 0; k < N; k++) {
      weights[k] = __ldg(job.within + index % BLOCK) ^ of_block;
      index++;
      if (++in_run == chunk.run) {
        in_run = 0;
        index += (u64)(chunk.pitch - chunk.run);
      }
      if (index / BLOCK != block) {
        block = index / BLOCK;
        of_block = block_key(block) & ~1u;
      }
    }
  }
}

// What is rare, or of float64 alone: a block counts it together, and no thread has registers for it.
enum { NANS, ABOVE, BELOW, NEGATIVES, SUBNORMALS, RARE };

__device__ void clear_rare(u32 (&rare)[RARE]) {
  __syncthreads();
  if (threadIdx.x < RARE) rare[threadIdx.x] = 0;
  __syncthreads();
}

template <class T> __device__ T smaller(T a, T b) { return b < a ? b : a; }
template <class T> __device__ T larger(T a, T b) { return a < b ? b : a; }

// The extremes of finite elements, by their words: those of negative numbers are the largest of all,
// and as integers with a sign they are below zero. `smallest` is what is missing from twice the bits
// of the smallest magnitude to 2^32, or 2^64: so that of zero, which is not meant, nothing is.
template <class K> struct Extremes {
  using Word = typename K::Word;
  using Signed = Either<WIDE<K>, i64, int>;
  static constexpr Word SIGN = (Word)1 << (8 * sizeof(Word) - 1);
  Word top = 0, bottom = ~(Word)0, smallest = 0;
  Signed most_signed = (Signed)SIGN;

  __device__ void add(Word a, Word b) {
    top = larger(larger(top, a), b);
    bottom = smaller(smaller(bottom, a), b);
    most_signed = larger(larger(most_signed, (Signed)a), (Signed)b);
    smallest = larger(larger(smallest, (Word)(0 - a - a)), (Word)(0 - b - b));
  }
  __device__ void add(const Extremes& other) {
    top = larger(top, other.top);
    bottom = smaller(bottom, other.bottom);
    most_signed = larger(most_signed, other.most_signed);
    smallest = larger(smallest, other.smallest);
  }
  // Twice the bits of the largest magnitude; 0 of no element.
  __device__ Word largest_twice() const {
    return larger((Word)(most_signed < 0 ? 0 : most_signed << 1),
                  (Word)(top & SIGN ? top << 1 : 0));
  }
  __device__ typename K::Real largest() const { return K::real(largest_twice() >> 1); }
  // Of one element at least.
  __device__ typename K::Real least() const { return K::real(top & SIGN ? top : bottom); }
  __device__ typename K::Real most() const {
    return K::real(most_signed < 0 ? bottom : (Word)most_signed);
  }
  __device__ bool is_empty() const { return bottom > top; }
  __device__ bool has_subnormals() const { return smallest > 0 - ((Word)2 << FRACTION_BITS<K>); }
};

// The extremes of this thread's elements; takes those that are not finite from `present`.
template <class K>
__device__ Extremes<K> look(const Held<typename K::Bits> (&raw)[PER], u32& present, u32 (&rare)[RARE]) {
  Extremes<K> found;
  for (int j = 0; j < PER; j += 2) found.add(K::word(raw[j]), K::word(raw[j + 1]));
  if (present == ALL && found.largest_twice() < INFINITE_TWICE<K>) return found;
  found = Extremes<K>();
  for (int j = 0; j < PER; j++) {
    if (!(present >> j & 1)) continue;
    const typename K::Word word = K::word(raw[j]);
    if (word + word < INFINITE_TWICE<K>) {
      found.add(word, word);
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
  u32 slots[SLOTS];
  u32 tiny[64];
  u32 bins[BINS];
  u32 rare[RARE];
  u32 ignored[RARE];  // what is rare in the tiles that are surveyed, and counted later
  double eighths[2][THREADS];

  __device__ void clear() {
    for (int i = threadIdx.x; i < SLOTS; i += THREADS) slots[i] = 0;
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    if (threadIdx.x < 64) tiny[threadIdx.x] = 0;
    eighths[0][threadIdx.x] = eighths[1][threadIdx.x] = 0;
    clear_rare(rare);
  }
};

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
  constexpr Word SIGN = Extremes<K>::SIGN;
  Word words[4] = {own.top, (Word)~own.bottom, (Word)own.most_signed ^ SIGN, own.smallest};
  across_block<Most>(words);
  Extremes<K> all;
  all.top = words[0];
  all.bottom = ~words[1];
  all.most_signed = (typename Extremes<K>::Signed)(words[2] ^ SIGN);
  all.smallest = words[3];
  found[0] = found[1] = found[2] = INFINITE;
  if (!all.is_empty()) {
    found[0] = all.least();
    found[1] = -all.most();
  }
  if (all.smallest) found[2] = K::real((Word)(0 - all.smallest) >> 1);
}
