// The kernels by name: what is done, `piece` where elements have a region, and the kind of elements.

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
