// The merge of leaves into rows.

// What to merge, and into what: see `launch.Merge`.
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

// What each lane of a warp has of the moments of some elements: united two by two, lane by lane.
struct Share {
  double n, moments[N_MOMENTS];
  u64 checksum;

  // Of a leaf, as many times as there are copies.
  __device__ void read(const i64* counts, const double* from, u64 sum, i64 copies) {
    n = copies * measured(counts);
    for (int i = 0; i < N_MOMENTS; i++) moments[i] = from[i] * (i <= M_PROJECTION ? copies : 1);
    checksum = copies * sum;
  }
  __device__ void take(int distance) {
    double theirs[N_MOMENTS];
    const double their_n = __shfl_xor_sync(~0u, n, distance);
    for (int i = 0; i < N_MOMENTS; i++) theirs[i] = __shfl_xor_sync(~0u, moments[i], distance);
    merge_moments(n, moments, their_n, theirs);
    n += their_n;
    checksum += __shfl_xor_sync(~0u, checksum, distance);
  }
};

static_assert(FAN < 32, "The leaves of a run, and the row, have a lane each.");

// Merges leaves into one row; each counts as many times as there are copies.
extern "C" __global__ void __launch_bounds__(THREADS) merge_leaves(const Merge job) {
  const i64* run = job.runs + RUN * (i64)blockIdx.x;
  const i64 row = run[0], first = run[1], end = run[2], stride = run[3], copies = run[4];
  i64* counts = job.into_counts + row * N_COUNTS;
  double* moments = job.into_moments + row * N_MOMENTS;
  const int lane = threadIdx.x;
  if (lane < 32) {  // before the counts are merged, from which it follows how many there are
    Share share = {};
    share.moments[M_MIN] = share.moments[M_ABS_MIN] = INFINITE;
    share.moments[M_MAX] = -INFINITE;
    const i64 leaf = first + (lane - 1) * stride;  // the row itself is the first of all
    if (lane == 0) share.read(counts, moments, job.into_checksum[row], 1);
    if (lane > 0 && leaf < end)
      share.read(job.counts + leaf * N_COUNTS, job.moments + leaf * N_MOMENTS, job.checksum[leaf],
                 copies);
    for (int distance = 1; distance < 32; distance *= 2) share.take(distance);
    if (lane == 0) {
      for (int i = 0; i < N_MOMENTS; i++) moments[i] = share.moments[i];
      job.into_checksum[row] = share.checksum;
    }
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
