// CUDA C on the CPU, as far as the kernels need it. Blocks run one after the other. The threads of a
// block run from barrier to barrier, and the lanes of a warp from shuffle to shuffle, each time in
// another order: where a barrier is missing, what comes out is wrong. If one is missed, and threads
// wait for each other for good, the process ends.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  unsigned int x;
};
struct alignas(8) uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};

Index threadIdx, blockIdx;

namespace block {
constexpr size_t STACK = 1 << 16;
constexpr int MOST = 512;
int size;  // threads of a block
constexpr int LANES = 32;
enum State { READY, AT_SHUFFLE, AT_BARRIER, ENDED };
ucontext_t scheduler, threads[MOST];
State states[MOST];
std::vector<char> stacks(MOST* STACK);
std::function<void()> work;
std::minstd_rand random_order;
// By the parity of a thread's shuffles, for one lane may write for the next while another reads.
unsigned long long exchanged[2][MOST];
bool odd[MOST];

void run_thread() {
  work();
  states[threadIdx.x] = ENDED;
}

void wait(State state) {
  const unsigned int own = threadIdx.x;
  states[own] = state;
  swapcontext(&threads[own], &scheduler);
}

// Threads begin … end - 1 go on if all of them are in a state.
void release(int begin, int end, State from) {
  for (int i = begin; i < end; i++)
    if (states[i] != from) return;
  for (int i = begin; i < end; i++) states[i] = READY;
}

// Whether any thread went on.
bool run_those_ready() {
  bool any = false;
  // Each number below a power of two comes once: the factor is odd.
  const unsigned int factor = random_order() | 1, first = random_order();
  for (int turn = 0; turn < size; turn++) {
    const int i = (turn * factor + first) % size;
    if (states[i] != READY) continue;
    threadIdx.x = i;
    swapcontext(&scheduler, &threads[i]);
    any = true;
  }
  return any;
}

void run() {
  for (int i = 0; i < size; i++) {
    getcontext(&threads[i]);
    threads[i].uc_stack.ss_sp = &stacks[i * STACK];
    threads[i].uc_stack.ss_size = STACK;
    threads[i].uc_link = &scheduler;
    makecontext(&threads[i], run_thread, 0);
    states[i] = READY;
    odd[i] = false;
  }
  while (run_those_ready()) {
    for (int warp = 0; warp < size; warp += LANES) release(warp, warp + LANES, AT_SHUFFLE);
    release(0, size, AT_BARRIER);
  }
  for (int i = 0; i < size; i++)
    if (states[i] != ENDED) {
      fprintf(stderr, "Thread %d of block %u waits for others for good\n", i, blockIdx.x);
      abort();
    }
}
}  // namespace block

void __syncthreads() { block::wait(block::AT_BARRIER); }

int __syncthreads_count(int predicate) {
  static bool holds[block::MOST];
  int number = 0;
  holds[threadIdx.x] = predicate;
  __syncthreads();
  for (int i = 0; i < block::size; i++) number += holds[i];
  __syncthreads();
  return number;
}

template <class T> T shuffled(T value, unsigned int from) {
  static_assert(sizeof(T) <= 8);
  const unsigned int own = threadIdx.x;
  auto& exchanged = block::exchanged[block::odd[own] = !block::odd[own]];
  memcpy(&exchanged[own], &value, sizeof(T));
  block::wait(block::AT_SHUFFLE);
  memcpy(&value, &exchanged[from], sizeof(T));
  return value;
}

template <class T> T __shfl_xor_sync(unsigned int, T value, int distance) {
  return shuffled(value, threadIdx.x ^ distance);
}

template <class T> T __shfl_sync(unsigned int, T value, int lane) {
  return shuffled(value, threadIdx.x / block::LANES * block::LANES + lane);
}

int __any_sync(unsigned int, unsigned int predicate) {
  for (int distance = 16; distance; distance /= 2)
    predicate |= __shfl_xor_sync(~0u, predicate, distance);
  return predicate != 0;
}

template <class To, class From> To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

float __uint_as_float(unsigned int bits) { return same_bits<float>(bits); }
unsigned int __float_as_uint(float x) { return same_bits<unsigned int>(x); }
double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
long long __double_as_longlong(double x) { return same_bits<long long>(x); }
float half_to_float(unsigned short bits) { return same_bits<_Float16>(bits); }
using Counter = unsigned int*;
Counter counter_at(unsigned int* counter) { return counter; }
void count(Counter first, unsigned int place) { first[place]++; }
alignas(16) unsigned int value_counters[1 << 16];
// Of both halves of words.
template <class Half, class F> unsigned int of_halves(F of, unsigned a, unsigned b, unsigned c) {
  const Half low = of((Half)a, (Half)b, (Half)c);
  const Half high = of((Half)(a >> 16), (Half)(b >> 16), (Half)(c >> 16));
  return (unsigned int)(unsigned short)high << 16 | (unsigned short)low;
}
unsigned int __vmaxu2(unsigned int a, unsigned int b) {
  using Half = unsigned short;
  return of_halves<Half>([](Half x, Half y, Half) { return x < y ? y : x; }, a, b, 0);
}
unsigned int __viaddmin_u16x2(unsigned int a, unsigned int b, unsigned int c) {
  using Half = unsigned short;
  return of_halves<Half>(
      [](Half x, Half y, Half z) { return (Half)(x + y) < z ? (Half)(x + y) : z; }, a, b, c);
}
unsigned int __viaddmax_s16x2(unsigned int a, unsigned int b, unsigned int c) {
  using Half = short;
  return of_halves<Half>(
      [](Half x, Half y, Half z) { return (Half)(x + y) < z ? z : (Half)(x + y); }, a, b, c);
}
unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned int permuted = 0;
  for (int i = 0; i < 4; i++)
    permuted |= (unsigned int)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return permuted;
}
int __popc(unsigned int bits) { return __builtin_popcount(bits); }
int __clz(unsigned int bits) { return bits ? __builtin_clz(bits) : 32; }
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
unsigned int atomicAdd(unsigned int* to, unsigned int n) {
  const unsigned int before = *to;
  *to += n;
  return before;
}

template <class Arguments>
void launch(void (*kernel)(const Arguments), int blocks, int threads, const Arguments* arguments) {
  block::size = threads;
  for (int i = 0; i < blocks; i++) {
    blockIdx.x = i;
    block::work = [=] { kernel(*arguments); };
    block::run();
  }
}
