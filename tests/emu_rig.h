/* What the tests of the CUDA emulator share: device arrays, and programs that must die. */
#ifndef EMU_RIG_H
#define EMU_RIG_H

#include "runtime/cuda/pi_cuda_port.cuh"
#include "tests/emu/emu_ctl.h"
#include "tests/tap.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#define CK(call) EQ((call), cudaSuccess)

/* n elements of device memory; says so only when something fails. */
template <typename T> struct dev {
    T *p = NULL;
    size_t n;

    explicit dev(size_t n_) : n(n_)
    {
        if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess)
            OK(!"cudaMalloc");
    }
    explicit dev(const std::vector<T> &v) : dev(v.size())
    {
        if (cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess)
            OK(!"cudaMemcpy to the device");
    }
    dev(const dev &) = delete;
    ~dev()
    {
        if (cudaFree(p) != cudaSuccess)
            OK(!"cudaFree");
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);

        if (cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess)
            OK(!"cudaMemcpy to the host");
        return v;
    }
};

/* Runs this program again as "program --die name", with the environment given ("A=1", or NULL), and returns what it
 * printed on stderr; *status as from waitpid(). */
static inline std::string run_self(const char *name, const char *env, int *status)
{
    int fd[2];
    char buf[4096];
    ssize_t n;
    std::string said;

    if (pipe(fd) != 0)
        return "no pipe";
    const pid_t pid = fork();

    if (pid == 0) {
        (void)dup2(fd[1], 2);
        (void)close(fd[0]);
        (void)close(fd[1]);
        if (env != NULL)
            (void)putenv(strdup(env));
        (void)execl("/proc/self/exe", "t_emu", "--die", name, (char *)NULL);
        _exit(126);
    }
    (void)close(fd[1]);
    while ((n = read(fd[0], buf, sizeof(buf))) > 0)
        said.append(buf, (size_t)n);
    (void)close(fd[0]);
    if (waitpid(pid, status, 0) != pid)
        *status = 0;
    return said;
}

/* The program must abort and say text. */
static inline void dies(const char *name, const char *env, const char *text)
{
    int status = 0;
    const std::string said = run_self(name, env, &status);

    if (!OK(status != 0 && said.find(text) != std::string::npos))
        printf("# %s: status %d, \"%s\" not in: %s\n", name, status, text, said.c_str());
    else
        printf("# %s: %s\n", name, said.substr(0, said.find('\n')).c_str());
}

#endif
