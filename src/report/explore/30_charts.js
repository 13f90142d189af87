'use strict';

// Bars and histograms of counts.
const Charts = (() => {
  const {drawing, make, svg} = Elements;

  // A bar of parts [{share, colour, className, title}] of the whole width.
  function bar(parts, className = 'bar thin') {
    const made = make('div', {class: className});
    for (const part of parts) {
      const one = make('div', {class: part.className});
      one.style.width = 100 * Math.max(0, Math.min(1, part.share)) + '%';
      if (part.colour) one.style.background = part.colour;
      if (part.title) Tooltip.attach(one, () => part.title);
      made.append(one);
    }
    return made;
  }

  // The bins that have something, without the long empty ends.
  function range(lists) {
    let first = Infinity, last = -1;
    for (const counts of lists)
      counts.forEach((count, bin) => {
        if (!count) return;
        first = Math.min(first, bin);
        last = Math.max(last, bin);
      });
    return last < 0 ? null : [first, last];
  }
  const sum = (counts) => counts.reduce((total, count) => total + count, 0);
  const added = (lists, length) =>
      Array.from({length}, (_, bin) => lists.reduce((total, one) => total + (one[bin] || 0), 0));
  // The length that half of the documents do not exceed, as near as the bins tell.
  function median(counts, edges) {
    const half = sum(counts) / 2;
    let passed = 0;
    for (let bin = 0; bin < counts.length; ++bin) {
      if (passed + counts[bin] >= half && counts[bin] > 0)
        return edges[bin] +
            (edges[bin + 1] - edges[bin]) * Math.max(0, half - passed) / counts[bin];
      passed += counts[bin];
    }
    return NaN;
  }
  // A round number that is not below the value.
  function ceiling(value) {
    const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
    return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
  }

  const kHeight = 190, kTop = 8, kBottom = 22, kRight = 4;

  // Two lists of counts over bins: wide bars behind, narrow ones before them.
  function histogram({before, after, edges, unit, label}) {
    const bins = range([before, after]);
    if (!bins) return make('p', {class: 'empty', text: 'No documents.'});
    const [first, last] = bins;
    const highest = ceiling(Math.max(1, ...before, ...after));
    const draw = (width) => {
      const left = 10 + 7 * Format.si(highest).length;
      const step = (width - left - kRight) / (last - first + 1);
      const x = (bin) => left + (bin - first) * step;
      const height = (count) => (kHeight - kTop - kBottom) * count / highest;
      const floor = kHeight - kBottom;
      const parts = [];
      for (const share of [0, 0.5, 1]) {
        const y = floor - height(share * highest);
        parts.push(svg('line', {x1: left, x2: width - kRight, y1: y, y2: y}));
        parts.push(
            svg('text',
                {x: left - 5, y: y + 4, 'text-anchor': 'end', text: Format.si(share * highest)}));
      }
      const every = 2 * Math.max(1, Math.ceil(46 / (2 * step)));  // of powers of two
      for (let bin = first; bin <= last; ++bin) {
        const column = (count, share, className) => count ? svg('rect', {
          class: className,
          x: x(bin) + step * (1 - share) / 2,
          width: Math.max(1, step * share),
          y: floor - Math.max(1, height(count)),
          height: Math.max(1, height(count))
        }) :
                                                            null;
        parts.push(column(before[bin], 0.86, 'before'), column(after[bin], 0.46, 'after'));
        if (bin % every === 0 && x(bin) + 30 < width)
          parts.push(svg('text', {
            x: x(bin),
            y: kHeight - 6,
            text: unit === 'bytes' ? Format.bytes(edges[bin], 2) : Format.si(edges[bin], '', 2)
          }));
        parts.push(hit(bin, x(bin), step));
      }
      return parts.filter(Boolean);
    };
    const hit = (bin, x, width) => {
      const area = svg('rect', {class: 'hit', x, width, y: 0, height: kHeight - kBottom});
      const to = bin + 1 < edges.length ? edges[bin + 1] - 1 : Infinity;
      Tooltip.attach(
          area,
          () => `${Format.count(edges[bin])} – ${Format.count(to)} ${unit}: ${
              Format.count(before[bin])} read, ${Format.count(after[bin])} written`);
      return area;
    };
    return drawing({class: 'histogram', 'aria-label': label}, kHeight, draw);
  }
  return {added, bar, histogram, median, sum};
})();
