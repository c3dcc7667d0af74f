/*
 * What reports are made of: escaping, figures, ticks, paths of known lines, the curve of activations against brute force, bytes read by
 * hand.
 */
#include "config.h"

#include "common/pi_census.h"
#include "common/pi_html.h"
#include "common/pi_reads.h"
#include "common/pi_svg.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <stdint.h>

static const char *escaped(struct pi_html *h, const char *text, size_t n, size_t most)
{
    pi_html_free(h);
    pi_html_text_n(h, text, n, most);
    return h->s != NULL ? h->s : "";
}

#define ESC(text, want) STREQ(escaped(&h, text, sizeof(text) - 1, 0), want)

static void test_text(void)
{
    struct pi_html h = {0};

    ESC("", "");
    ESC("plain", "plain");
    ESC("<script>alert(\"1\")</script>", "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;");
    ESC("a & b's", "a &amp; b&#39;s");
    ESC("&amp;", "&amp;amp;"); /* what is escaped already is text all the same */
    ESC("gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f");
    ESC("a\x01\x7f"
        "b\tc\n",
        "a\xef\xbf\xbd\xef\xbf\xbd"
        "b\tc\n");
    ESC("a\0b", "a\xef\xbf\xbd"
                "b");
    ESC("\xff<\xc0\xaf", "\xef\xbf\xbd&lt;\xef\xbf\xbd\xef\xbf\xbd");
    ESC("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate */
    ESC("\xe2\x80\xae"
        "gpj.exe",
        "\xef\xbf\xbd"
        "gpj.exe");                                              /* turns what follows around */
    ESC("\xe2\x81\xa6\xe2\x80\x93", "\xef\xbf\xbd\xe2\x80\x93"); /* a dash stays */
    ESC("\xc2\x85", "\xef\xbf\xbd");
    STREQ(escaped(&h, "abcdef", 6, 6), "abcdef");
    STREQ(escaped(&h, "abcdef", 6, 5), "abcde…");
    STREQ(escaped(&h, "<<<<", 4, 2), "&lt;&lt;…");
    STREQ(escaped(&h, "\xc3\xbc\xc3\xbc", 4, 1), "\xc3\xbc…");
    pi_html_free(&h);
    pi_html_textf(&h, "%s has %d", "<b>", 3);
    pi_html_markup(&h, "<i>%d</i>", 4);
    STREQ(h.s, "&lt;b&gt; has 3<i>4</i>");
    pi_html_free(&h);
    pi_html_data(&h, 0.1, "10 %");
    pi_html_cell(&h, NAN, "nothing");
    pi_html_cell(&h, HUGE_VAL, "much");
    STREQ(h.s, "<data value=\"0.10000000000000001\">10 %</data><td>–</td><td>–</td>");
    pi_html_free(&h);
}

static void test_save(void)
{
    char *dir = scratch_open();
    char *path = scratch_path(dir, "page.html");
    struct pi_html h = {0};
    struct pi_err e = {0};

    pi_html_begin(&h, "a <title>");
    pi_html_end(&h);
    OK(strstr(h.s, "<title>a &lt;title&gt;</title>") != NULL);
    PASSES(pi_html_save(&h, path, &e), e);
    OK(access(path, F_OK) == 0);
    (void)unlink(path);
    h.failed = true;
    pi_html_markup(&h, "more");
    FAILS(pi_html_save(&h, path, &e), PI_E_NOMEM, "page.html", e);
    OK(access(path, F_OK) != 0);
    pi_html_free(&h);
    free(path);
    scratch_close(dir);
}

static void test_figures(void)
{
    char b[PI_FIGURE];

    STREQ(pi_figure_share(0.0, b), "0 %");
    STREQ(pi_figure_share(1.0, b), "100 %");
    STREQ(pi_figure_share(0.123456, b), "12.3 %");
    STREQ(pi_figure_share(0.00123, b), "0.12 %");
    STREQ(pi_figure_share(1e-9, b), "< 0.01 %");
    STREQ(pi_figure_share(NAN, b), "–");
    STREQ(pi_figure_bytes(0, b), "0 bytes");
    STREQ(pi_figure_bytes(1023, b), "1023 bytes");
    STREQ(pi_figure_bytes(1536, b), "1.50 KiB");
    STREQ(pi_figure_bytes(8.0 * (1 << 30), b), "8.00 GiB");
    STREQ(pi_figure_bytes(24.0 * (1 << 20), b), "24.0 MiB");
    STREQ(pi_figure_time(12.34e-6, b), "12.3 µs");
    STREQ(pi_figure_time(999.6e-6, b), "1.00 ms");
    STREQ(pi_figure_time(2.5, b), "2.50 s");
    STREQ(pi_figure_time(0, b), "0 µs");
    STREQ(pi_figure_rate(3.14159, b), "3.14");
    STREQ(pi_figure_rate(123.4, b), "123");
    STREQ(pi_figure_rate(12345.0, b), "12\xe2\x80\xaf"
                                      "345");
    STREQ(pi_figure_count(0, b), "0");
    STREQ(pi_figure_count(1536, b), "1536");
    STREQ(pi_figure_count(1234567, b), "1\xe2\x80\xaf"
                                       "234\xe2\x80\xaf"
                                       "567");
    STREQ(pi_figure_count(-12345, b), "-12\xe2\x80\xaf"
                                      "345");
    STREQ(pi_figure_count(1e30, b), "–");
    STREQ(pi_figure_factor(1.5, b), "1.50 ×");
    STREQ(pi_base_name("a/b.gguf"), "b.gguf");
    STREQ(pi_base_name("b.gguf"), "b.gguf");
}

/* Axes: at most n steps, of 1, 2 or 5 times a power of ten. */
static void test_ticks(void)
{
    bool good = true;

    NEAR(pi_tick_step(1.0, 5), 0.2, 1e-12);
    NEAR(pi_tick_step(100.0, 4), 50.0, 1e-9);
    NEAR(pi_tick_step(8.0, 12), 1.0, 1e-12);
    NEAR(pi_tick_step(0.0, 5), 1.0, 0.0);
    NEAR(pi_tick_step(NAN, 5), 1.0, 0.0);
    for (double span = 1e-7; span < 1e9; span *= 1.37) {
        const double step = pi_tick_step(span, 6), m = step / pow(10.0, floor(log10(step) + 1e-9));

        good = good && span / step <= 6.0 + 1e-6 && span / step > 2.0 &&
               (fabs(m - 1) < 1e-6 || fabs(m - 2) < 1e-6 || fabs(m - 5) < 1e-6);
    }
    OK(good);
}

static void test_paths(void)
{
    struct pi_html h = {0};
    const struct pi_plot p = {&h, 10, 20, 100, 50, 0, 1, 0, 2};
    const double x[] = {0, 0.25, 0.5, 0.75, 1}, y[] = {0, 1, NAN, 2, 5};
    const double alone[] = {NAN, 1, NAN};

    pi_plot_line(&p, "l0", x, y, 5);
    STREQ(h.s, "<path class=\"ln l0\" d=\"M10 70L35 45M85 20L110 20\"/>\n");
    pi_html_free(&h);
    pi_plot_line(&p, "l0", x, alone, 3);
    STREQ(h.s, "<path class=\"ln l0\" d=\"M33 45h4\"/>\n");
    pi_html_free(&h);
    pi_plot_bars_begin(&p, "f");
    pi_plot_bar(&p, 0.0, 0.5, 0.0, 1.0);
    pi_plot_bar(&p, 0.5, 1.0, 0.0, 0.0); /* empty */
    pi_plot_bar(&p, 0.5, 1.0, 0.0, NAN);
    pi_plot_bars_end(&p);
    STREQ(h.s, "<path class=\"f\" d=\"M10.00 45.00h50.00v25.00h-50.00z\"/>\n");
    pi_html_free(&h);
    pi_plot_label(&p, "t", "end", 1, 2, -3, 4, "<1 & 2>");
    STREQ(
        h.s,
        "<text class=\"t\" text-anchor=\"end\" x=\"107.0\" y=\"24.0\">&lt;1 &amp; 2&gt;</text>\n");
    pi_html_free(&h);
    pi_plot_dot(&p, "f", 3, NAN, 1);
    OK(h.n == 0);
    pi_html_free(&h);
}

static int falling(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

/* The curve is what sorting and adding up gives, at every place. */
static void test_curve(uint32_t n_ff)
{
    enum {
        LAYERS = 3
    };
    uint32_t cuts[PI_CENSUS_CUTS], state = n_ff;
    uint64_t *count = calloc((size_t)LAYERS * n_ff, sizeof(*count));
    struct pi_profile p = {.n_layer = LAYERS, .n_ff = n_ff, .n_tokens = 1000, .count = count};
    struct pi_err e = {0};
    double got[PI_CENSUS_CUTS], worst = 0.0;
    const size_t n = pi_census_cuts(n_ff, cuts);
    bool rising = true;

    for (uint32_t i = 0; i < 2 * n_ff; i++) { /* the last layer is silent */
        state = state * 1664525u + 1013904223u;
        count[i] = state % 1000 * (state >> 16) % 1000;
    }
    count[0] = 1;
    for (size_t i = 1; i < n; i++)
        rising = rising && cuts[i] > cuts[i - 1];
    OK(rising && cuts[0] == 0 && cuts[n - 1] == n_ff);
    for (uint32_t l = 0; l < 2; l++) {
        uint64_t *sorted = count + (size_t)l * n_ff, total = 0, sum = 0;
        size_t k = 0;

        PASSES(pi_census_curve(&p, l, cuts, n, got, &e), e);
        qsort(sorted, n_ff, sizeof(*sorted), falling);
        for (uint32_t i = 0; i < n_ff; i++)
            total += sorted[i];
        for (uint32_t i = 0; i <= n_ff && total > 0; i++) {
            if (k < n && cuts[k] == i)
                worst = fmax(worst, fabs(got[k++] - (double)sum / (double)total));
            sum += i < n_ff ? sorted[i] : 0;
        }
        OK(k == n || total == 0);
    }
    NEAR(worst, 0.0, 1e-12);
    PASSES(pi_census_curve(&p, 2, cuts, n, got, &e), e);
    OK(isnan(got[0]) && isnan(got[n - 1]));
    free(count);
}

/* 100 neurons of rows of 10, 20 and 40 bytes, 25 of them active; a predictor that finds 0.8 of them and calls 30. */
static void test_reads(void)
{
    struct pi_layer_bytes layer[2] = {{.attn = 1000,
                                       .ffn_fixed = 8,
                                       .gate_row = 10,
                                       .up_row = 20,
                                       .down_row = 40,
                                       .pred_fixed = 50,
                                       .pred_per_neuron = 1}};
    struct pi_predictor_layer nets[2] = {{.width = 4, .recall = 0.8f, .density = 0.3f}};
    const struct pi_predictor pred = {.n_layer = 2, .n_ff = 100, .layers = nets};
    struct pi_model_bytes b = {.n_layer = 2,
                               .n_ff = 100,
                               .layers = layer,
                               .kv_layer = 64,
                               .output = 500,
                               .output_norm = 4};
    uint64_t count[200];
    const struct pi_profile prof = {.n_layer = 2, .n_ff = 100, .n_tokens = 40, .count = count};
    struct pi_reads r;

    layer[1] = layer[0]; /* without a predictor */
    layer[1].gate_row = 0;
    for (int i = 0; i < 200; i++)
        count[i] = 10;
    pi_reads_take(&b, &prof, &pred, PI_MODE_DENSE, &r);
    NEAR(r.ffn, 7000 + 6000, 0);
    NEAR(r.total, 13000 + 2 * 1008 + 64 + 504, 0);
    pi_reads_take(&b, &prof, &pred, PI_MODE_EXACT, &r);
    NEAR(r.ffn, (1000 + 25 * 60) + (2000 + 25 * 40), 1e-9);
    NEAR(r.predictor, 0, 0);
    pi_reads_take(&b, &prof, &pred, PI_MODE_PREDICTED, &r);
    NEAR(r.ffn, (30 * 10 + 20 * 60) + (2000 + 25 * 40), 1e-3);
    NEAR(r.predictor, 150, 0);
    EQ(r.n_predicted, 1);
    layer[0].pred_fixed = 5000; /* dearer than exact */
    pi_reads_take(&b, &prof, &pred, PI_MODE_PREDICTED, &r);
    EQ(r.n_predicted, 0);
    NEAR(r.ffn, 2500 + 3000, 1e-9);
    pi_reads_take(&b, NULL, NULL, PI_MODE_EXACT, &r); /* all fire */
    NEAR(r.ffn, 13000, 0);
}

int main(void)
{
    static const uint32_t sizes[] = {1, 2, 37, 64, 1000, 11008};

    test_text();
    test_save();
    test_figures();
    test_ticks();
    test_paths();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        test_curve(sizes[i]);
    test_reads();
    return DONE();
}
