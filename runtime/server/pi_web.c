#include "config.h"

#include "runtime/server/pi_web.h"

#include <string.h>

const struct pi_web_header pi_web_headers[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-cache"}, /* another version of the program may answer next time */
    {NULL, NULL},
};

const struct pi_web_file *pi_web_find(const char *path)
{
    static const struct pi_web_file files[] = {
        {"/", "text/html; charset=utf-8", pi_web_html, &pi_web_html_size},
        {"/page.css", "text/css; charset=utf-8", pi_web_css, &pi_web_css_size},
        {"/page.js", "text/javascript; charset=utf-8", pi_web_js, &pi_web_js_size},
    };

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (strcmp(files[i].path, path) == 0)
            return &files[i];
    return NULL;
}
