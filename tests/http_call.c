/*
 * http_call PORT METHOD PATH [BODY [HEADER]] - one request to a server on this machine, for tests: the status on a line, then the body as it came (chunks put together).
 * http_call --slow PORT METHOD PATH BODY SECONDS: sends the request and reads nothing for that long, then goes away.
 * http_call --raw PORT SECONDS: sends standard input as it is and prints what comes, until the other end closes or is silent for that long.
 * http_call --idle PORT N SECONDS: N connections that send half a request and then nothing for that long.
 */
#include "config.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static char *data; /* (n) the answer */
static size_t n, cap;

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static int reach(const char *port)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(port)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);

    if (s < 0 || connect(s, (const struct sockaddr *)&a, sizeof(a)) != 0)
        die("connect");
    return s;
}

static void ask(int s, const char *method, const char *path, const char *body, const char *header)
{
    char head[1024];
    int k = snprintf(head, sizeof(head),
                     "%s %s HTTP/1.1\r\n%sConnection: close\r\n%s%s"
                     "Content-Length: %zu\r\n\r\n",
                     method, path, strncmp(header, "Host:", 5) == 0 ? "" : "Host: localhost\r\n",
                     header, *header != '\0' ? "\r\n" : "", strlen(body));

    if (k < 0 || (size_t)k >= sizeof(head) || write(s, head, (size_t)k) != k)
        die("write");
    if (*body != '\0' && write(s, body, strlen(body)) < 0)
        die("write");
}

static void listen_to_all(int s)
{
    ssize_t k;

    do {
        if (n + 65536 > cap && (data = realloc(data, cap += 1 << 20)) == NULL)
            die("realloc");
        k = read(s, data + n, 65536);
        n += k > 0 ? (size_t)k : 0;
    } while (k > 0);
    if (k < 0)
        die("read");
    data[n] = '\0';
}

/* The parts of a chunked body. */
static void print_chunks(const char *p)
{
    for (;;) {
        char *end;
        unsigned long size = strtoul(p, &end, 16);

        if (size == 0 || strncmp(end, "\r\n", 2) != 0)
            return;
        (void)fwrite(end + 2, 1, size, stdout);
        p = end + 2 + size + 2;
    }
}

static int raw(const char *port, unsigned seconds)
{
    const struct timeval t = {.tv_sec = seconds};
    static char buf[65536];
    const int s = reach(port);
    size_t k;
    ssize_t got;

    (void)signal(SIGPIPE, SIG_IGN);
    if (setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) != 0)
        die("setsockopt");
    while ((k = fread(buf, 1, sizeof(buf), stdin)) > 0)
        if (send(s, buf, k, 0) != (ssize_t)k)
            break; /* refused already: the answer says why */
    while ((got = recv(s, buf, sizeof(buf), 0)) > 0)
        (void)fwrite(buf, 1, (size_t)got, stdout);
    return got < 0; /* not closed */
}

static int idle(const char *port, int count, unsigned seconds)
{
    static const char half[] = "GET /health HTTP/1.1\r\nHost: local";

    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < count; i++)
        (void)!write(reach(port), half, sizeof(half) - 1);
    (void)sleep(seconds);
    return 0;
}

int main(int argc, char **argv)
{
    const int slow = argc > 1 && strcmp(argv[1], "--slow") == 0;
    char *body;
    int s;

    if (argc == 4 && strcmp(argv[1], "--raw") == 0)
        return raw(argv[2], (unsigned)atoi(argv[3]));
    if (argc == 5 && strcmp(argv[1], "--idle") == 0)
        return idle(argv[2], atoi(argv[3]), (unsigned)atoi(argv[4]));
    argv += slow;
    argc -= slow;
    if (argc < 4)
        return 99;
    s = reach(argv[1]);
    ask(s, argv[2], argv[3], argc > 4 ? argv[4] : "", argc > 5 && !slow ? argv[5] : "");
    if (slow) {
        (void)sleep((unsigned)atoi(argv[5]));
        return 0;
    }
    listen_to_all(s);
    body = strstr(data, "\r\n\r\n");
    if (body == NULL || strncmp(data, "HTTP/1.1 ", 9) != 0) {
        (void)fprintf(stderr, "no answer\n");
        return 99;
    }
    *body = '\0';
    printf("%.3s\n", data + 9);
    if (strcasestr(data, "\r\ntransfer-encoding: chunked") != NULL)
        print_chunks(body + 4);
    else
        (void)fwrite(body + 4, 1, n - (size_t)(body + 4 - data), stdout);
    return 0;
}
