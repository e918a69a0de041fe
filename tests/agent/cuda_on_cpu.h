// CUDA C on the CPU, as far as the kernels need it: blocks run one after the other, and the threads
// of a block take turns at barriers. A thread that misses a barrier ends the process.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
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
ucontext_t scheduler, threads[THREADS];
bool ended[THREADS];
std::vector<char> stacks(THREADS* STACK);
std::function<void()> work;
unsigned long long exchanged[THREADS];

void run_thread() {
  work();
  ended[threadIdx.x] = true;
}

void run() {
  for (int i = 0; i < THREADS; i++) {
    getcontext(&threads[i]);
    threads[i].uc_stack.ss_sp = &stacks[i * STACK];
    threads[i].uc_stack.ss_size = STACK;
    threads[i].uc_link = &scheduler;
    ended[i] = false;
    makecontext(&threads[i], run_thread, 0);
  }
  for (int there = THREADS; there;) {
    int left = 0;
    for (int i = 0; i < THREADS; i++) {
      threadIdx.x = i;
      if (!ended[i]) swapcontext(&scheduler, &threads[i]);
      left += !ended[i];
    }
    if (left && left < THREADS) {
      fprintf(stderr, "%d of %d threads of block %u missed a barrier\n", THREADS - left, THREADS,
              blockIdx.x);
      abort();
    }
    there = left;
  }
}
}  // namespace block

void __syncthreads() {
  const unsigned int own = threadIdx.x;
  swapcontext(&block::threads[own], &block::scheduler);
}

template <class T> T __shfl_xor_sync(unsigned int, T value, int distance) {
  static_assert(sizeof(T) <= 8);
  const unsigned int other = threadIdx.x ^ distance;
  memcpy(&block::exchanged[threadIdx.x], &value, sizeof(T));
  __syncthreads();
  memcpy(&value, &block::exchanged[other], sizeof(T));
  __syncthreads();
  return value;
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
void launch(void (*kernel)(const Arguments), int blocks, const Arguments* arguments) {
  for (int i = 0; i < blocks; i++) {
    blockIdx.x = i;
    block::work = [=] { kernel(*arguments); };
    block::run();
  }
}
