/*
 * pi_gpu_wait.h - what the files that implement pi_gpu.h share about waiting.
 */
#ifndef PI_GPU_WAIT_H
#define PI_GPU_WAIT_H

/* Streams that pi_gpu_may_free() waits for. */
void pi_gpu_stream_note(void *stream);
void pi_gpu_stream_forget(void *stream);

/* For what the driver lets wait for the whole device: waits until it is idle, as long as it moves. False: it was given up, now or before, and the call
 * would never come back. A device that has failed is idle. */
bool pi_gpu_may_free(void);

#endif
