/* A CUDA device on the CPU, for tests: .cu files compile as C++17 with -DPI_CUDA_EMU and run, kernels and host code
 * alike. Never part of the product.
 *
 * Kernels: the threads of a block are fibers on the stream's OS thread, blocks run one after the other. A thread runs
 * until its next barrier or warp function; all threads must come to the same one (same function, same line), else the
 * program ends with a message that names the kernel, the block, the threads and the lines. Shared memory, static and
 * dynamic, and fresh device memory hold 0xff bytes (NaN, -1), so that a read of what nobody wrote shows.
 * Streams: one OS thread each, started by their first work; a kernel that polls a flag runs beside host threads.
 * Graphs: the captured operations in the order of their capture, run as one item of a stream.
 * Memory: every device allocation ends at a page nobody may touch, freed addresses are not used again.
 *
 * Environment, read at the first CUDA call (or cudaEmuReload()):
 *   PI_EMU_DEVICES=0          no device at all
 *   PI_EMU_MEMORY=1G          the device's memory (K, M, G)
 *   PI_EMU_CONTEXT=128M       what of it the context takes
 *   PI_EMU_BLOCKS=forward|reverse|random[:SEED]   order of the blocks of a launch
 *   PI_EMU_THREADS=forward|reverse|random[:SEED]  order of warps and of lanes in a block
 *   PI_EMU_PDL=1              in graphs, a kernel launched with PI_LAUNCH_PDL runs up to pi_pdl_wait() before the kernel
 *                             in front of it starts: what it reads too early is old
 *   PI_EMU_FAIL=cudaMalloc:3  the third call of that function fails ("launch": PI_LAUNCH); comma-separated list
 *   PI_EMU_FAULT=N            the N-th kernel to run (those of graphs count) faults: sticky cudaErrorIllegalAddress
 *   PI_EMU_STOP=N             the N-th kernel to run never ends
 *   PI_EMU_HALT=N             the N-th copy, fill or product of cuBLAS to run never ends
 *   PI_EMU_SLOW=MS            every kernel takes so many milliseconds longer
 *   PI_EMU_WATCHDOG=60        seconds that a kernel may poll before the program is ended with a message (0: for ever)
 *   PI_EMU_STRICT=1           device memory is unreadable for the host while no operation runs (slow)
 *   PI_EMU_LEAKS=1            allocations left at exit are listed and turn the exit status into 99, unless the device has
 *                             stopped: what it holds then nobody can free
 */
#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#include "tests/emu/emu_device.h"
#include "tests/emu/emu_host.h"
#include "tests/emu/emu_cublas.h"

#endif
