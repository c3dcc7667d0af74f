/*
 * pi_origin.h - who a browser says it talks to, and for whom.
 *
 * A server without a key trusts whoever reaches its address; by default that is this machine alone. But a page of any site runs in a browser on this machine. Two
 * ways in are closed here: a site's own name that is made to point to 127.0.0.1 (DNS rebinding: the browser then takes site and server for one origin), told by
 * the Host header; and requests that a page may send to other sites without asking, told by the Origin header. Programs that are no browsers send neither a foreign
 * name nor an origin.
 */
#ifndef PI_ORIGIN_H
#define PI_ORIGIN_H

#include <stdbool.h>

/* Whether host (a Host header: name or address, "[...]" around IPv6, with or without a port) can not be a name of somebody else's: an address in figures,
 * "localhost" or a name below it, or this machine's own name, own (or NULL). NULL: no header, hence no browser. */
bool pi_host_is_ours(const char *host, const char *own);

/* Whether origin (an Origin header, or NULL) is the site at host (as above): "http://HOST" or "https://HOST". Without host nothing is. */
bool pi_origin_is_host(const char *origin, const char *host);

#endif
