#!/usr/bin/env bash
# Draws the loss curve of a run as SVG:  scripts/plot_run.sh runs/demo > curve.svg
set -euo pipefail
metrics=${1:?usage: plot_run.sh RUN_DIRECTORY > curve.svg}/metrics.jsonl
grep -o '"step":[0-9]*\|"loss":[0-9.]*\|"valid_loss":[0-9.]*' "$metrics" | awk -F: '
  /"step"/ { n++; step[n] = $2 }
  /"loss"/ && !(n in loss) { loss[n] = $2; if ($2 > top) top = $2 }  # the first is the total; losses per source follow
  /"valid_loss"/ { valid[n] = $2 }
  END {
    w = 720; h = 360; l = 60; r = 20; t = 30; b = 50; bottom = 1; top = int(top + 1); last = step[n]
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n", w, h
    printf "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", w, h
    for (y = bottom; y <= top; y++) {
      py = t + (top - y) / (top - bottom) * (h - t - b)
      printf "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%d</text>\n", l, w - r, py, py, l - 8, py + 4, y
    }
    for (i = 0; i <= 5; i++) {
      px = l + i / 5 * (w - l - r)
      printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\">%d</text>\n", px, h - b + 20, last * i / 5
    }
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\">step</text>\n", (l + w - r) / 2, h - 10
    printf "<text x=\"%d\" y=\"18\" fill=\"#333\">loss (nats per token): training, and held-out text as dots</text>\n", l
    printf "<polyline fill=\"none\" stroke=\"#b8860b\" stroke-width=\"1.5\" points=\""
    for (i = 1; i <= n; i++) printf "%.1f,%.1f ", l + step[i] / last * (w - l - r), t + (top - loss[i]) / (top - bottom) * (h - t - b)
    print "\"/>"
    for (i = 1; i <= n; i++) if (i in valid) {
      px = l + step[i] / last * (w - l - r); py = t + (top - valid[i]) / (top - bottom) * (h - t - b)
      printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#222\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#222\">%.2f</text>\n", px, py, (px > w - 60 ? px - 20 : px), py - 10, valid[i]
    }
    print "</svg>"
  }'
