#include "config.h"

#include "runtime/server/pi_origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#define MAX_NAME 256 /* a DNS name has at most 253 characters */

static bool is_port(const char *p)
{
    size_t n = strspn(p, "0123456789");

    return p[n] == '\0' && n <= 5;
}

/* "[ADDRESS]" or "[ADDRESS]:PORT". */
static bool is_v6(const char *host)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    const char *end = strchr(host, ']');
    const size_t n = end != NULL ? (size_t)(end - host) - 1 : 0;

    if (end == NULL || n >= sizeof(text) ||
        (end[1] != '\0' && (end[1] != ':' || !is_port(end + 2))))
        return false;
    memcpy(text, host + 1, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, &address) == 1;
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);

    return n >= k && strcasecmp(name + n - k, end) == 0;
}

bool pi_host_is_ours(const char *host, const char *own)
{
    char name[MAX_NAME];
    struct in_addr address;
    size_t n;

    if (host == NULL)
        return true;
    if (host[0] == '[')
        return is_v6(host);
    n = strcspn(host, ":");
    if (n == 0 || n >= sizeof(name) || (host[n] == ':' && !is_port(host + n + 1)))
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    if (n > 1 && name[n - 1] == '.') /* as DNS writes names that are whole */
        name[n - 1] = '\0';
    return inet_pton(AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0 ||
           ends_in(name, ".localhost") ||
           (own != NULL && *own != '\0' && strcasecmp(name, own) == 0);
}

bool pi_origin_is_host(const char *origin, const char *host)
{
    if (origin == NULL)
        return true;
    if (host == NULL)
        return false;
    if (strncmp(origin, "http://", 7) == 0)
        return strcasecmp(origin + 7, host) == 0;
    return strncmp(origin, "https://", 8) == 0 && strcasecmp(origin + 8, host) == 0;
}
