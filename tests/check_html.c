/* check_html FILE... - pages of the reports: well formed, complete in themselves, readable by everybody. Prints TAP lines without numbers.
 *
 * Stricter than browsers are: every element but the void ones of HTML is closed, in order; attributes are quoted; < and & stand escaped in text; each id is
 * there once, and what refers to one finds it. Nothing is fetched and nothing runs: no scripts, no handlers, no links to elsewhere, no url() in styles;
 * "http" occurs in the namespace of SVG alone. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
#define MAX_IDS   512

struct page {
    const char *path, *s, *p; /* the text, where we are */
    char open[MAX_DEPTH][32];
    int depth;
    char ids[MAX_IDS][64], refs[MAX_IDS][64];
    int n_ids, n_refs, bad;
    int svgs, titles, descs, images; /* titles and descs: as an svg's first children */
};

static void fault(struct page *g, const char *what, const char *at)
{
    int line = 1;

    for (const char *c = g->s; c < at; c++)
        line += *c == '\n';
    if (g->bad++ < 10)
        printf("# %s, line %d: %s: %.60s\n", g->path, line, what, at);
}

static bool is_void(const char *name)
{
    static const char *const all[] = {"meta", "br", "hr", "img", "link"};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(name, all[i]) == 0)
            return true;
    return false;
}

/* &amp; &lt; &gt; &quot; &#39; &nbsp; &shy; */
static void check_entity(struct page *g, const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;",   "&gt;", "&quot;",
                                        "&#39;", "&nbsp;", "&shy;"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return;
    fault(g, "a bare &", at);
}

static void note(char list[][64], int *n, const char *v, size_t len)
{
    if (*n < MAX_IDS && len < 64) {
        memcpy(list[*n], v, len);
        list[(*n)++][len] = '\0';
    }
}

static void note_words(struct page *g, const char *v, size_t len)
{
    while (len > 0) {
        const char *space = memchr(v, ' ', len);
        const size_t n = space != NULL ? (size_t)(space - v) : len;

        note(g->refs, &g->n_refs, v, n);
        v += n + (space != NULL);
        len -= n + (space != NULL);
    }
}

static void attribute(struct page *g, const char *name, size_t len, const char *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (v[i] == '&')
            check_entity(g, v + i);
        if (v[i] == '<')
            fault(g, "< in an attribute", v + i);
    }
    if (len > 2 && strncmp(name, "on", 2) == 0)
        fault(g, "a handler", name);
    if ((len == 3 && strncmp(name, "src", 3) == 0) ||
        (len >= 4 && strncmp(name + len - 4, "href", 4) == 0))
        fault(g, "a link", name);
    if (len == 5 && strncmp(name, "style", 5) == 0)
        fault(g, "a style of its own", name);
    if (len == 2 && strncmp(name, "id", 2) == 0)
        note(g->ids, &g->n_ids, v, n);
    if (len == 15 && strncmp(name, "aria-labelledby", 15) == 0)
        note_words(g, v, n);
}

/* From behind the name to behind '>'. closed: ended in "/>". */
static void attributes(struct page *g, bool *closed)
{
    *closed = false;
    for (;;) {
        const char *name, *v;
        size_t len;

        while (isspace((unsigned char)*g->p))
            g->p++;
        if (*g->p == '>' || *g->p == '\0')
            break;
        if (g->p[0] == '/' && g->p[1] == '>') {
            *closed = true;
            g->p++;
            break;
        }
        name = g->p;
        while (isalnum((unsigned char)*g->p) || *g->p == '-')
            g->p++;
        len = (size_t)(g->p - name);
        if (len == 0 || g->p[0] != '=' || g->p[1] != '"') {
            fault(g, "an attribute without a quoted value", name);
            g->p += strcspn(g->p, ">");
            break;
        }
        v = g->p + 2;
        g->p = v + strcspn(v, "\"");
        attribute(g, name, len, v, (size_t)(g->p - v));
        g->p += *g->p == '"';
    }
    g->p += *g->p == '>';
}

static void begin_element(struct page *g, const char *name, const char *at)
{
    bool closed;
    const bool empty = is_void(name);

    attributes(g, &closed);
    if (strcmp(name, "script") == 0 || strcmp(name, "iframe") == 0 || strcmp(name, "link") == 0 ||
        strcmp(name, "img") == 0)
        fault(g, "an element that pages do not have", at);
    g->svgs += strcmp(name, "svg") == 0;
    if (g->depth > 0 && strcmp(g->open[g->depth - 1], "svg") == 0) {
        g->titles += strcmp(name, "title") == 0;
        g->descs += strcmp(name, "desc") == 0;
    }
    if (closed || empty)
        return;
    if (g->depth == MAX_DEPTH) {
        fault(g, "too deep", at);
        return;
    }
    (void)snprintf(g->open[g->depth++], 32, "%s", name);
}

static void tag(struct page *g)
{
    const char *at = g->p++;
    const bool end = *g->p == '/';
    char name[32];
    size_t n = 0;

    g->p += end;
    while (n < 31 && isalnum((unsigned char)*g->p))
        name[n++] = *g->p++;
    name[n] = '\0';
    if (n == 0) {
        fault(g, "a bare <", at);
    } else if (!end) {
        begin_element(g, name, at);
    } else {
        if (g->depth == 0 || strcmp(g->open[g->depth - 1], name) != 0)
            fault(g, "closes what is not open", at);
        else
            g->depth--;
        g->p += strcspn(g->p, ">");
        g->p += *g->p == '>';
    }
}

static void walk(struct page *g)
{
    static const char doctype[] = "<!DOCTYPE html>\n";

    if (strncmp(g->s, doctype, sizeof(doctype) - 1) != 0)
        fault(g, "no doctype", g->s);
    g->p = g->s + sizeof(doctype) - 1;
    while (*g->p != '\0') {
        if (g->depth > 0 && strcmp(g->open[g->depth - 1], "style") == 0 &&
            strncmp(g->p, "</style>", 8) != 0)
            g->p++;
        else if (*g->p == '<')
            tag(g);
        else {
            if (*g->p == '&')
                check_entity(g, g->p);
            if (*g->p == '>')
                fault(g, "a bare >", g->p);
            g->p++;
        }
    }
    if (g->depth > 0)
        fault(g, "not closed at the end", g->open[g->depth - 1]);
}

static void references(struct page *g)
{
    for (int i = 0; i < g->n_ids; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(g->ids[i], g->ids[k]) == 0)
                fault(g, "an id twice", g->ids[i]);
    for (int i = 0; i < g->n_refs; i++) {
        bool found = false;

        for (int k = 0; k < g->n_ids; k++)
            found = found || strcmp(g->refs[i], g->ids[k]) == 0;
        if (!found)
            fault(g, "names an id that is not there", g->refs[i]);
    }
    if (g->titles != g->svgs || g->descs != g->svgs)
        fault(g, "a drawing without title or description", g->s);
}

/* "http" in the namespace alone; nothing in styles that is fetched. */
static void outside(struct page *g)
{
    static const char ns[] = " xmlns=\"http://www.w3.org/2000/svg\"";
    static const char *const never[] = {"url(", "@import", "javascript:", "<base", "//cdn"};

    for (const char *c = g->s; (c = strstr(c, "http")) != NULL; c += 4)
        if (c - g->s < 8 || strncmp(c - 8, ns, sizeof(ns) - 1) != 0)
            fault(g, "an address", c);
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if (strstr(g->s, never[i]) != NULL)
            fault(g, "something from elsewhere", strstr(g->s, never[i]));
}

static void say(int ok, const char *path, const char *what)
{
    const char *slash = strrchr(path, '/');

    printf("%sok - %s: %s\n", ok ? "" : "not ", slash != NULL ? slash + 1 : path, what);
}

static int check(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct page *g = calloc(1, sizeof(*g));
    char *s = calloc(1, 64 << 20);
    int bad;

    if (f == NULL || g == NULL || s == NULL) {
        perror(path);
        exit(99);
    }
    (void)!fread(s, 1, (64 << 20) - 1, f);
    fclose(f);
    g->path = path;
    g->s = s;
    walk(g);
    say(g->bad == 0, path, "well formed");
    bad = g->bad, g->bad = 0;
    references(g);
    say(g->bad == 0, path, "titles, descriptions and ids");
    bad += g->bad, g->bad = 0;
    outside(g);
    say(g->bad == 0, path, "complete in itself");
    bad += g->bad;
    say(strstr(s, "prefers-color-scheme:dark") != NULL && strstr(s, "@media print") != NULL, path,
        "styles for the dark and for print");
    free(s);
    free(g);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;

    for (int i = 1; i < argc; i++)
        bad += check(argv[i]);
    return bad > 0;
}
