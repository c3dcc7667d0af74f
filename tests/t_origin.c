/* Host and Origin headers: whom a server without a key takes for a browser on its own page. */
#include "config.h"

#include "runtime/server/pi_origin.h"
#include "tests/tap.h"

int main(void)
{
    static const char *const ours[] = {
        "localhost", "localhost:8080", "LOCALHOST:1",    "localhost.", "pi.localhost",
        "127.0.0.1", "127.0.0.1:8080", "192.168.1.5:80", "[::1]",      "[::1]:8080",
        "box",       "BOX:8080"};
    static const char *const others[] = {"",
                                         "evil.example",
                                         "evil.example:8080",
                                         "127.0.0.1.evil.example",
                                         "localhost.evil.example",
                                         "notlocalhost",
                                         "[::1",
                                         "[evil]",
                                         "[::1]x",
                                         "localhost:x",
                                         "localhost:8080:1",
                                         "127.0.0.1@evil.example",
                                         "box.evil.example"};

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        STREQ(pi_host_is_ours(ours[i], "box") ? ours[i] : "refused", ours[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        STREQ(pi_host_is_ours(others[i], "box") ? "taken" : others[i], others[i]);
    OK(pi_host_is_ours(NULL, NULL));
    OK(!pi_host_is_ours("box", NULL));
    OK(pi_origin_is_host(NULL, "localhost"));
    OK(pi_origin_is_host("http://localhost:8080", "localhost:8080"));
    OK(pi_origin_is_host("https://box", "box"));
    OK(!pi_origin_is_host("http://localhost:81", "localhost:8080"));
    OK(!pi_origin_is_host("null", "localhost"));
    OK(!pi_origin_is_host("http://evil.example", "localhost"));
    OK(!pi_origin_is_host("http://localhost", NULL));
    return DONE();
}
