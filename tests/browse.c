/*
 * browse BROWSER FOLDER - drives a Chromium through its DevTools pipe, for tests of pages. FOLDER is its profile. Commands come from standard input, a line each:
 *
 *   open URL           loads it and waits for that; reload: the same again
 *   do JS              evaluates; a promise is waited for
 *   check NAME: JS     "ok - NAME" as soon as JS gives true, "not ok - NAME" and what it gives instead after a minute
 *   clean NAME         "ok - NAME" if, since the last such line, no script failed and nothing was complained about in the console but what
 *                      the server refused, and no request left the server of the page
 *   click CSS          with the mouse, in the middle of the first such element that is shown
 *   type TEXT          into what has the focus; press KEY: Enter, Shift+Enter, Tab or Escape
 *   save FILE JS       the string that it gives
 *   size W H light|dark
 *   shot FILE          a PNG of what is seen
 *   run COMMAND        of the shell
 *
 * Standard output has TAP lines without numbers. Status 0 if all commands could be carried out.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 60.0 /* seconds for a check, and for the browser to answer */

static int to_browser = -1, from_browser = -1;
static char *buffer; /* (n_buffer): read and not yet taken */
static size_t n_buffer;
static json_int_t last_id;
static char session[128], origin[128];
static bool loaded;
static char complaint[4096]; /* the first since the last "clean"; empty: none */

static void die(const char *what)
{
    printf("# browse: %s\nBail out! browse: %s\n", what, what);
    exit(99);
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- messages ------------------------------------------------------------------------------- */

static void start_browser(const char *browser, const char *folder)
{
    int there[2], back[2];
    char profile[1024];

    (void)snprintf(profile, sizeof(profile), "--user-data-dir=%s", folder);
    if (pipe2(there, O_CLOEXEC) != 0 || pipe2(back, O_CLOEXEC) != 0)
        die("pipe");
    to_browser = there[1];
    from_browser = back[0];
    switch (fork()) {
    case -1:
        die("fork");
        break;
    case 0: { /* the browser reads descriptor 3 and writes 4 */
        const int in = fcntl(there[0], F_DUPFD_CLOEXEC, 10),
                  out = fcntl(back[1], F_DUPFD_CLOEXEC, 10);

        if (in < 0 || out < 0 || dup2(in, 3) < 0 || dup2(out, 4) < 0 ||
            freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "r", stdin) == NULL ||
            freopen("/dev/null", "w", stdout) == NULL)
            _exit(99);
        (void)execlp(browser, browser, "--headless=new", "--no-sandbox", "--disable-gpu",
                     "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                     "--remote-debugging-pipe", profile, "about:blank", (char *)NULL);
        _exit(99);
    }
    }
    (void)close(there[0]);
    (void)close(back[1]);
}

static void complain(const char *what, const json_t *where)
{
    char *text = json_dumps(where, JSON_COMPACT | JSON_ENCODE_ANY);

    if (complaint[0] == '\0')
        (void)snprintf(complaint, sizeof(complaint), "%s: %s", what, text != NULL ? text : "");
    free(text);
}

static const char *string_at(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s != NULL ? s : "";
}

/* A request must go to the page's own server, or carry its data in its address. */
static void look_at_request(const json_t *params)
{
    const char *url = string_at(json_object_get(params, "request"), "url");

    if (strncmp(url, "data:", 5) != 0 && strcmp(url, "about:blank") != 0 &&
        (origin[0] == '\0' || strncmp(url, origin, strlen(origin)) != 0))
        complain("a request elsewhere", json_object_get(params, "request"));
}

static void take_event(const json_t *m)
{
    const char *method = string_at(m, "method");
    const json_t *params = json_object_get(m, "params"), *entry = json_object_get(params, "entry");

    if (strcmp(method, "Page.loadEventFired") == 0)
        loaded = true;
    else if (strcmp(method, "Runtime.exceptionThrown") == 0)
        complain("an exception", json_object_get(params, "exceptionDetails"));
    else if (strcmp(method, "Network.requestWillBeSent") == 0)
        look_at_request(params);
    else if (strcmp(method, "Log.entryAdded") == 0 &&
             strcmp(string_at(entry, "level"), "error") == 0 &&
             strcmp(string_at(entry, "source"), "network") != 0)
        complain("the console", entry);
}

/* The next message, or NULL if none comes until then. */
static json_t *receive(double until)
{
    for (;;) {
        char *end = n_buffer > 0 ? memchr(buffer, '\0', n_buffer) : NULL;
        struct pollfd p = {.fd = from_browser, .events = POLLIN};
        const double left = until - now();
        ssize_t k;

        if (end != NULL) {
            json_t *m = json_loads(buffer, 0, NULL);
            const size_t used = (size_t)(end - buffer) + 1;

            memmove(buffer, buffer + used, n_buffer - used);
            n_buffer -= used;
            if (m == NULL)
                die("a message of the browser that is no JSON");
            return m;
        }
        if (poll(&p, 1, left > 0 ? (int)(1000 * left) + 1 : 0) <= 0)
            return NULL;
        buffer = realloc(buffer, n_buffer + 65536);
        k = buffer != NULL ? read(from_browser, buffer + n_buffer, 65536) : -1;
        if (k <= 0)
            die("the browser went away");
        n_buffer += (size_t)k;
    }
}

static void pump(double seconds)
{
    const double until = now() + seconds;
    json_t *m;

    while ((m = receive(until)) != NULL) {
        take_event(m);
        json_decref(m);
    }
}

/* Takes params; gives the result, to be freed. */
static json_t *ask(const char *method, json_t *params)
{
    json_t *m = json_pack("{s:I, s:s, s:o}", "id", ++last_id, "method", method, "params",
                          params != NULL ? params : json_object());
    const double until = now() + PATIENCE;
    char *text;

    if (m != NULL && session[0] != '\0')
        (void)json_object_set_new(m, "sessionId", json_string(session));
    text = json_dumps(m, JSON_COMPACT);
    json_decref(m);
    if (text == NULL)
        die("no memory");
    for (size_t n = strlen(text) + 1, at = 0; at < n;) {
        const ssize_t k = write(to_browser, text + at, n - at);

        if (k <= 0)
            die("the browser takes no commands");
        at += (size_t)k;
    }
    free(text);
    while ((m = receive(until)) != NULL) {
        json_t *result;

        if (json_integer_value(json_object_get(m, "id")) != last_id) {
            take_event(m);
            json_decref(m);
            continue;
        }
        result = json_incref(json_object_get(m, "result"));
        if (result == NULL)
            die(string_at(json_object_get(m, "error"), "message"));
        json_decref(m);
        return result;
    }
    die(method);
    return NULL;
}

static void tell(const char *method, json_t *params)
{
    json_decref(ask(method, params));
}

/* ---- commands ------------------------------------------------------------------------------- */

/* The value of an expression, or what it throws; to be freed. */
static json_t *evaluate(const char *js)
{
    json_t *r = ask("Runtime.evaluate", json_pack("{s:s, s:b, s:b}", "expression", js,
                                                  "awaitPromise", 1, "returnByValue", 1));
    json_t *thrown = json_object_get(r, "exceptionDetails"),
           *v = thrown != NULL ? json_object_get(thrown, "exception")
                               : json_object_get(json_object_get(r, "result"), "value");

    v = v != NULL ? json_incref(v) : json_null();
    json_decref(r);
    return v;
}

static void check(char *args)
{
    char *js = strstr(args, ": ");
    const double until = now() + PATIENCE;
    json_t *v;
    bool good;

    if (js == NULL)
        die("check NAME: JS");
    *js = '\0';
    js += 2;
    for (;;) {
        v = evaluate(js);
        good = json_is_true(v);
        if (good || now() > until)
            break;
        json_decref(v);
        pump(0.02);
    }
    printf("%sok - %s\n", good ? "" : "not ", args);
    if (!good) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);

        printf("# %s\n# gives %s\n", js, text != NULL ? text : "nothing");
        free(text);
    }
    json_decref(v);
}

static void save(char *args)
{
    char *js = strchr(args, ' ');
    json_t *v;
    FILE *f;

    if (js == NULL)
        die("save FILE JS");
    *js++ = '\0';
    v = evaluate(js);
    f = fopen(args, "w");
    if (f == NULL || !json_is_string(v) || fputs(json_string_value(v), f) < 0 || fclose(f) != 0)
        die(js);
    json_decref(v);
}

static void clean(const char *name)
{
    pump(0.1);
    printf("%sok - %s\n", complaint[0] == '\0' ? "" : "not ", name);
    if (complaint[0] != '\0')
        printf("# %s\n", complaint);
    complaint[0] = '\0';
}

static void wait_loaded(void)
{
    const double until = now() + PATIENCE;

    while (!loaded && now() < until)
        pump(0.02);
    if (!loaded)
        die("a page that does not load");
}

static void open_url(const char *url)
{
    const char *host = strstr(url, "://"), *end = host != NULL ? strchr(host + 3, '/') : NULL;

    if (end != NULL)
        (void)snprintf(origin, sizeof(origin), "%.*s", (int)(end + 1 - url), url);
    loaded = false;
    tell("Page.navigate",
         json_pack("{s:s}", "url", "about:blank")); /* another hash alone loads nothing */
    wait_loaded();
    loaded = false;
    tell("Page.navigate", json_pack("{s:s}", "url", url));
    wait_loaded();
}

static void mouse(const char *type, double x, double y)
{
    tell("Input.dispatchMouseEvent", json_pack("{s:s, s:f, s:f, s:s, s:i}", "type", type, "x", x,
                                               "y", y, "button", "left", "clickCount", 1));
}

static void click(const char *css)
{
    char js[1024];
    json_t *at;

    (void)snprintf(
        js, sizeof(js),
        "(() => { const e = [...document.querySelectorAll('%s')].find((e) => e.getClientRects().length);"
        " if (!e) return null; e.scrollIntoView({ block: 'nearest' }); const r = e.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()",
        css);
    at = evaluate(js);
    if (json_array_size(at) != 2)
        die(css);
    for (size_t i = 0; i < 2; i++)
        mouse(i == 0 ? "mousePressed" : "mouseReleased", json_number_value(json_array_get(at, 0)),
              json_number_value(json_array_get(at, 1)));
    json_decref(at);
}

static void press(const char *key)
{
    const int shift = strncmp(key, "Shift+", 6) == 0 ? 8 : 0;
    const char *name = shift != 0 ? key + 6 : key;
    const bool enter = strcmp(name, "Enter") == 0;
    const int code = enter                         ? 13
                     : strcmp(name, "Tab") == 0    ? 9
                     : strcmp(name, "Escape") == 0 ? 27
                                                   : 0;

    if (code == 0)
        die(key);
    tell("Input.dispatchKeyEvent",
         json_pack("{s:s, s:s, s:s, s:i, s:i, s:s}", "type", enter ? "keyDown" : "rawKeyDown",
                   "key", name, "code", name, "windowsVirtualKeyCode", code, "modifiers", shift,
                   "text", enter ? "\r" : ""));
    tell("Input.dispatchKeyEvent",
         json_pack("{s:s, s:s, s:s, s:i, s:i}", "type", "keyUp", "key", name, "code", name,
                   "windowsVirtualKeyCode", code, "modifiers", shift));
}

static void set_size(const char *args)
{
    int w = 0, h = 0;
    char scheme[8] = "";

    if (sscanf(args, "%d %d %7s", &w, &h, scheme) != 3)
        die("size W H light|dark");
    tell("Emulation.setDeviceMetricsOverride",
         json_pack("{s:i, s:i, s:f, s:b}", "width", w, "height", h, "deviceScaleFactor", 1.0,
                   "mobile", w < 600));
    tell("Emulation.setEmulatedMedia", json_pack("{s:[{s:s, s:s}]}", "features", "name",
                                                 "prefers-color-scheme", "value", scheme));
}

static int value_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

static void shot(const char *file)
{
    json_t *r = ask("Page.captureScreenshot", NULL);
    FILE *f = fopen(file, "wb");
    unsigned bits = 0;
    int n = 0;

    if (f == NULL)
        die(file);
    for (const char *s = string_at(r, "data"); value_of(*s) >= 0; s++) { /* base64 */
        bits = bits << 6 | (unsigned)value_of(*s);
        n += 6;
        if (n >= 8) {
            n -= 8;
            (void)fputc((int)(bits >> n & 255), f);
        }
    }
    if (fclose(f) != 0)
        die(file);
    json_decref(r);
}

static void run_command(const char *command)
{
    (void)fflush(stdout);
    if (system(command) != 0)
        die(command);
}

static void obey(char *line)
{
    char *args = strchr(line, ' ');

    if (args != NULL)
        *args++ = '\0';
    else
        args = line + strlen(line);
    if (strcmp(line, "open") == 0) {
        open_url(args);
    } else if (strcmp(line, "reload") == 0) {
        loaded = false;
        tell("Page.reload", NULL);
        wait_loaded();
    } else if (strcmp(line, "do") == 0) {
        json_decref(evaluate(args));
    } else if (strcmp(line, "check") == 0) {
        check(args);
    } else if (strcmp(line, "save") == 0) {
        save(args);
    } else if (strcmp(line, "clean") == 0) {
        clean(args);
    } else if (strcmp(line, "click") == 0) {
        click(args);
    } else if (strcmp(line, "type") == 0) {
        tell("Input.insertText", json_pack("{s:s}", "text", args));
    } else if (strcmp(line, "press") == 0) {
        press(args);
    } else if (strcmp(line, "size") == 0) {
        set_size(args);
    } else if (strcmp(line, "shot") == 0) {
        shot(args);
    } else if (strcmp(line, "run") == 0) {
        run_command(args);
    } else if (*line != '\0' && *line != '#') {
        die(line);
    }
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    json_t *target, *attached;

    if (argc != 3)
        return 99;
    start_browser(argv[1], argv[2]);
    target = ask("Target.createTarget", json_pack("{s:s}", "url", "about:blank"));
    attached = ask("Target.attachToTarget",
                   json_pack("{s:o, s:b}", "targetId", json_string(string_at(target, "targetId")),
                             "flatten", 1));
    (void)snprintf(session, sizeof(session), "%s", string_at(attached, "sessionId"));
    json_decref(target);
    json_decref(attached);
    tell("Page.enable", NULL);
    tell("Runtime.enable", NULL);
    tell("Log.enable", NULL);
    tell("Network.enable", NULL);
    while ((n = getline(&line, &cap, stdin)) >= 0) {
        if (n > 0 && line[n - 1] == '\n')
            line[n - 1] = '\0';
        obey(line);
    }
    session[0] = '\0';
    tell("Browser.close", NULL);
    (void)close(to_browser);
    (void)wait(NULL);
    free(line);
    free(buffer);
    return 0;
}
