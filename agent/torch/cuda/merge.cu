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
