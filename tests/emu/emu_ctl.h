/* What tests ask the emulated device; C and C++. See cuda_emu.h. */
#ifndef EMU_CTL_H
#define EMU_CTL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory in use and its largest value so far, bytes as asked for, without the context. */
size_t cudaEmuUsedBytes(void);
size_t cudaEmuPeakBytes(void);
void cudaEmuResetPeak(void);
/* Device and pinned host allocations not freed yet. */
int cudaEmuLiveAllocations(void);
/* Streams, events, graphs, executable graphs, cuBLAS handles not destroyed yet. */
int cudaEmuLiveObjects(void);
/* Kernels that ran (graphs included) since the start or the last reload. */
unsigned long cudaEmuKernelsRun(void);
/* Copies, fills and products of cuBLAS likewise. */
unsigned long cudaEmuOthersRun(void);
/* Waits for the device, reads the environment again, sets all counts of calls and kernels to 0 and forgets sticky errors. */
void cudaEmuReload(void);

#ifdef __cplusplus
}
#endif
#endif
