// The kernels by name: what is done, `piece` where elements have a region, and the kind of elements.

#define SKETCHES(kind, K)                 \
  KERNEL(sketch_##kind, sketch<K, false>) \
  KERNEL(sketch_piece_##kind, sketch<K, true>)
#define GLANCES(kind, K)                         \
  KERNEL(glance_##kind, glance<K, false, false>) \
  KERNEL(compare_##kind, glance<K, false, true>) \
  KERNEL(compare_piece_##kind, glance<K, true, true>)

SKETCHES(float64, Float64)
SKETCHES(float32, Float32)
SKETCHES(float16, Float16)
GLANCES(float64, Float64)
GLANCES(float32, Float32)
GLANCES(bfloat16, BFloat16)
GLANCES(float16, Float16)
KERNEL(sketch_bytes, sketch_the_bytes<false>)
KERNEL(sketch_piece_bytes, sketch_the_bytes<true>)
KERNEL(glance_bytes, glance_at_the_bytes<false, false>)
KERNEL(compare_bytes, glance_at_the_bytes<false, true>)
KERNEL(compare_piece_bytes, glance_at_the_bytes<true, true>)
