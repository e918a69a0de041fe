// The kernels that count magnitudes, by name.

KERNEL(sketch_bfloat16, sketch<BFloat16, false>)
KERNEL(sketch_piece_bfloat16, sketch<BFloat16, true>)
