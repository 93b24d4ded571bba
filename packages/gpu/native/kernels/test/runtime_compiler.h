// SPDX-License-Identifier: Apache-2.0
/*
 * Names that run-time compilers know by themselves, so that a plain compiler can read the kernels as those do: without any
 * header. Declarations only; nothing of this runs.
 */
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct Coordinates {
  unsigned x, y, z;
};
extern const Coordinates blockIdx, gridDim, threadIdx, blockDim;

unsigned __float_as_uint(float);
float __uint_as_float(unsigned);
long long __double_as_longlong(double);
double __longlong_as_double(long long);
float fabsf(float);
float fmaxf(float, float);
float __fmaf_rn(float, float, float);
double __fma_rn(double, double, double);
void __syncthreads();
double fabs(double);
unsigned __shfl_xor_sync(unsigned, unsigned, int);
unsigned __shfl_xor(unsigned, int);
unsigned __shfl_sync(unsigned, unsigned, int, int);
unsigned __shfl(unsigned, int, int);
unsigned __shfl_up_sync(unsigned, unsigned, unsigned, int);
unsigned __shfl_up(unsigned, unsigned, int);
unsigned __byte_perm(unsigned, unsigned, unsigned);
int __popc(unsigned);
int __ffs(int);
unsigned __funnelshift_r(unsigned, unsigned, unsigned);
unsigned long long atomicAdd(unsigned long long*, unsigned long long);
unsigned atomicMax(unsigned*, unsigned);
unsigned long long atomicMin(unsigned long long*, unsigned long long);
long long wall_clock64();
