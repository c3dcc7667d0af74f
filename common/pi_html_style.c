/* pi_html_style.c - colours are Okabe and Ito's where light allows, told apart by people who see fewer; ramp steps go from dark to light, so that they
 * also differ in grey. --c0 ... --c7: early to late layers. */
#include "config.h"

#include "common/pi_html_style.h"

#include <stddef.h>

#define LIGHT                                                                        \
    "color-scheme:light;--bg:#fff;--card:#f5f7f9;--fg:#1c2128;--muted:#56606b;"      \
    "--grid:#dfe4ea;--line:#c3cbd4;--gpu:#0068a8;--cpu:#c24a00;--attn:#8a949e;"      \
    "--lead:#8d3f86;--sync:#e0a000;--dens:#00775c;--pred:#8d3f86;--mean:#1c2128;"    \
    "--good:#00775c;--fair:#8a6100;--bad:#b3361c;"                                   \
    "--c0:#2b1d6b;--c1:#323c8c;--c2:#2a5c99;--c3:#21789b;--c4:#1f9294;--c5:#35a987;" \
    "--c6:#63bb6d;--c7:#94c64f"
#define DARK                                                                         \
    "color-scheme:dark;--bg:#14181d;--card:#1d232a;--fg:#e4e8ec;--muted:#9fabb7;"    \
    "--grid:#2c343d;--line:#465260;--gpu:#5bb8f0;--cpu:#f28a4b;--attn:#8b97a3;"      \
    "--lead:#dd9fd6;--sync:#f2c744;--dens:#3ec79d;--pred:#dd9fd6;--mean:#f4f6f8;"    \
    "--good:#3ec79d;--fair:#f2c744;--bad:#ff8a70;"                                   \
    "--c0:#6b6ee0;--c1:#5b86e0;--c2:#4f9ddb;--c3:#49b3d0;--c4:#4fc6bd;--c5:#69d5a3;" \
    "--c6:#95e085;--c7:#cbe96c"

const char *const pi_html_style[] = {
    ":root{" LIGHT "}\n"
    "@media screen and (prefers-color-scheme:dark){:root{" DARK "}}\n",

    "*{box-sizing:border-box}\n"
    "html{-webkit-text-size-adjust:100%;text-size-adjust:100%}\n"
    "body{margin:0;background:var(--bg);color:var(--fg);"
    "font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif}\n"
    "main{max-width:76rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}\n"
    "h1{font-size:1.75rem;line-height:1.2;margin:.2rem 0 .3rem;overflow-wrap:anywhere}\n"
    "h2{font-size:1.25rem;line-height:1.3;margin:0 0 .35rem}\n"
    "h3{font-size:1rem;margin:0 0 .15rem}\n"
    "p{margin:.4rem 0 .7rem;max-width:46rem}\n"
    "code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.9em;"
    "overflow-wrap:anywhere}\n"
    ".kind{color:var(--muted);font-size:.85rem;letter-spacing:.04em;text-transform:uppercase;margin:0}\n"
    ".facts{color:var(--muted);margin:0;max-width:none;overflow-wrap:anywhere}\n"
    "section{border-top:1px solid var(--line);margin-top:2rem;padding-top:1.4rem}\n"
    "a{color:var(--gpu)}\n",

    ".verdict{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--c);"
    "border-radius:8px;margin:1.3rem 0 1rem;padding:1rem 1.25rem .6rem}\n"
    ".good{--c:var(--good)}.fair{--c:var(--fair)}.bad{--c:var(--bad)}.open{--c:var(--attn)}\n"
    ".verdict .call{font-size:1.35rem;font-weight:650;line-height:1.3;margin:0 0 .6rem;max-width:none}\n"
    ".verdict .call span{color:var(--c)}\n"
    ".verdict p{max-width:62rem}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem;"
    "list-style:none;margin:0 0 .5rem;padding:0}\n"
    ".tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.6rem .8rem;max-width:24rem}\n"
    ".tiles b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}\n"
    ".tiles span{color:var(--muted);display:block;font-size:.85rem;line-height:1.35}\n",

    ".pair{display:grid;gap:1.25rem;align-items:start}\n"
    "@media(min-width:62rem){.pair{grid-template-columns:minmax(0,1.05fr) minmax(0,1fr)}}\n"
    "figure{margin:0}\n"
    "figcaption{color:var(--muted);font-size:.875rem;line-height:1.45;margin-top:.35rem}\n"
    ".pair>*{min-width:0}\n"
    "svg{display:block;width:100%;height:auto;max-width:44rem}\n"
    ".scroll{max-height:25rem;overflow:auto;border:1px solid var(--line);border-radius:8px}\n"
    ".scroll:focus-visible{outline:2px solid var(--gpu);outline-offset:2px}\n"
    "table{border-collapse:collapse;width:100%;font-size:.84rem;font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;color:var(--muted);padding:.5rem .6rem .3rem}\n"
    "th,td{padding:.22rem .5rem;text-align:right;white-space:nowrap;border-top:1px solid var(--grid)}\n"
    "th{font-weight:600}thead th:first-child{text-align:left}\n"
    ".rules thead th:nth-child(n+3),.modes thead th:last-child{text-align:left}\n"
    "thead th{position:sticky;top:0;background:var(--card);border-top:0;vertical-align:bottom;"
    "white-space:normal;line-height:1.25}\n"
    "tbody th,td.word,th.word{text-align:left;white-space:normal}\n"
    "tr.sum>*{border-top:2px solid var(--line);font-weight:600}\n"
    "tr.here>*{background:color-mix(in srgb,var(--gpu) 16%,transparent);font-weight:600}\n"
    "dl{display:grid;gap:.2rem 1.2rem;max-width:62rem}\n"
    "@media(min-width:40rem){dl{grid-template-columns:max-content 1fr}}\n"
    "dt{font-weight:600}dd{margin:0 0 .3rem}\n"
    ".small{color:var(--muted);font-weight:400;font-size:.875rem;max-width:62rem}\n"
    ".alone{display:block;max-width:62rem;margin-top:1rem}\n",

    /* drawings: all colours come from the variables, so that they follow the scheme */
    "svg text{fill:var(--fg);font:13.5px system-ui,-apple-system,\"Segoe UI\",Roboto,Arial,sans-serif}\n"
    "svg .tick{fill:var(--muted);font-size:12.5px;font-variant-numeric:tabular-nums}\n"
    "svg .head{font-weight:600}\n"
    "svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}\n"
    ".grid{stroke:var(--grid);fill:none}.axis{stroke:var(--line);fill:none}\n"
    ".ln{fill:none;stroke-width:1.3;stroke-linejoin:round;opacity:.85}\n"
    ".bold{stroke-width:2.8;opacity:1}.thin{stroke-width:.9;opacity:.6}\n"
    ".dash{stroke-dasharray:5 4}\n"
    ".even{stroke:var(--muted)}.lmean{stroke:var(--mean)}.hit{fill:transparent}\n",

    ".lgpu{stroke:var(--gpu)}.lcpu{stroke:var(--cpu)}.ldens{stroke:var(--dens)}.lpred{stroke:var(--pred)}\n"
    ".fgpu{fill:var(--gpu)}.fcpu{fill:var(--cpu)}.fattn{fill:var(--attn)}.flead{fill:var(--lead)}\n"
    ".fsync{fill:var(--sync)}.fdens{fill:var(--dens)}.fpred{fill:var(--pred)}.fmean{fill:var(--mean)}\n"
    ".off{fill:var(--grid)}.beyond{fill:var(--attn);opacity:.14}\n"
    "svg text.tgpu{fill:var(--gpu)}svg text.tcpu{fill:var(--cpu)}svg text.tdens{fill:var(--dens)}"
    "svg text.tpred{fill:var(--pred)}svg text.tmuted{fill:var(--muted)}svg text.tmean{fill:var(--mean)}\n"
    ".l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}"
    ".l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}.l7{stroke:var(--c7)}\n"
    ".k0{fill:var(--c0)}.k1{fill:var(--c1)}.k2{fill:var(--c2)}.k3{fill:var(--c3)}"
    ".k4{fill:var(--c4)}.k5{fill:var(--c5)}.k6{fill:var(--c6)}.k7{fill:var(--c7)}\n",

    "@media print{body{font-size:10.5pt}main{max-width:none;padding:0 1px}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}"
    ".scroll{max-height:none;overflow:visible}thead th{position:static}"
    "section{break-inside:auto;margin-top:1.2rem}h2,h3,caption,section>p{break-after:avoid}"
    "figure,.verdict,.tiles li,tr{break-inside:avoid}"
    "svg{max-width:15cm}a{color:inherit;text-decoration:none}@page{margin:1.6cm}}\n",
    NULL};
