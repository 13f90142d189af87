'use strict';

// The memory plan as treemaps: the area of a box is its size, the colour its region.
const MemoryPanel = (() => {
  const kHeights = {device: 190, host: 90};
  const kColours = [0, 1, 2, 3, 5, 6, 7, 8, 9, 4];  // red last: it means trouble elsewhere

  // Squarified treemap (Bruls, Huizing, van Wijk 2000): fills rows along the shorter side while the
  // worst aspect ratio improves. items: [{bytes}] descending; returns [{item, x, y, width,
  // height}].
  function squarify(items, width, height) {
    const total = items.reduce((sum, item) => sum + item.bytes, 0);
    const boxes = [];
    if (!(total > 0)) return boxes;
    const scale = width * height / total;
    let free = {x: 0, y: 0, width, height};
    let row = [];
    const areaOf = (list) => list.reduce((sum, item) => sum + item.bytes * scale, 0);
    const worst = (list, side) => {
      const area = areaOf(list), sizes = list.map((item) => item.bytes * scale);
      return Math.max(
          side * side * Math.max(...sizes) / (area * area),
          area * area / (side * side * Math.min(...sizes)));
    };
    const place = () => {
      const along = free.width >= free.height, side = along ? free.height : free.width;
      const depth = areaOf(row) / side;
      let at = along ? free.y : free.x;
      for (const item of row) {
        const length = item.bytes * scale / depth;
        boxes.push(
            along ? {item, x: free.x, y: at, width: depth, height: length} :
                    {item, x: at, y: free.y, width: length, height: depth});
        at += length;
      }
      free = along ? {...free, x: free.x + depth, width: free.width - depth} :
                     {...free, y: free.y + depth, height: free.height - depth};
      row = [];
    };
    for (const item of items) {
      const side = Math.min(free.width, free.height);
      if (row.length && worst([...row, item], side) > worst(row, side)) place();
      row.push(item);
    }
    if (row.length) place();
    return boxes;
  }

  // Boxes of one region stay together: regions are laid out first, then the entries inside each.
  function layout(entries, width, height) {
    const regions = new Map();
    for (const entry of entries) {
      if (!(entry.bytes > 0)) continue;
      if (!regions.has(entry.region))
        regions.set(entry.region, {region: entry.region, bytes: 0, entries: []});
      const region = regions.get(entry.region);
      region.bytes += entry.bytes;
      region.entries.push(entry);
    }
    const descending = (list) => [...list].sort((a, b) => b.bytes - a.bytes);
    return squarify(descending(regions.values()), width, height)
        .flatMap(
            (outer) => squarify(descending(outer.item.entries), outer.width, outer.height)
                           .map((box) => ({...box, x: box.x + outer.x, y: box.y + outer.y})));
  }
  function box({item, x, y, width, height}, colour) {
    const {svg} = Elements;
    const rect =
        svg('rect', {x, y, width: Math.max(0, width), height: Math.max(0, height), fill: colour});
    Tooltip.attach(rect, () => `${item.region}: ${item.name}, ${Format.bytes(item.bytes)}`);
    const group = svg('g', {}, rect);
    const letters = Math.floor((width - 8) / 6.8);
    if (letters >= 3 && height >= 15) {
      group.append(svg('text', {x: x + 4, y: y + 12, text: shortened(String(item.name), letters)}));
      if (height >= 30)
        group.append(
            svg('text', {x: x + 4, y: y + 25, text: shortened(Format.bytes(item.bytes), letters)}));
    }
    return group;
  }
  const shortened = (text, letters) =>
      (text.length <= letters ? text : text.slice(0, Math.max(1, letters - 1)) + '…');

  function treemap(entries, title, colours, height) {
    const drawing =
        Elements.svg('svg', {class: 'treemap', height, role: 'img', 'aria-label': title});
    let drawnWidth = 0;
    new ResizeObserver(() => {
      const width = Math.round(drawing.clientWidth || drawing.parentNode.clientWidth);
      if (!width || width === drawnWidth) return;
      drawnWidth = width;
      drawing.setAttribute('viewBox', `0 0 ${width} ${height}`);
      drawing.replaceChildren(...layout(entries, width, height)
                                  .map((each) => box(each, colours.get(each.item.region))));
    }).observe(drawing);
    return drawing;
  }
  function regionKey(entries, colours) {
    const {make, named} = Elements;
    const sums = new Map();
    for (const entry of entries)
      sums.set(entry.region, (sums.get(entry.region) || 0) + entry.bytes);
    const sorted = [...sums].sort((a, b) => b[1] - a[1]);
    return make(
        'div', {class: 'key'},
        ...sorted.map(
            ([region, bytes]) => named(colours.get(region), region + ' ' + Format.bytes(bytes))));
  }
  function describe(memory, where) {
    const parts = ['planned ' + Format.bytes(memory[where + '_total'])];
    if (where === 'device') {
      if (memory.backend_bytes) parts.push('libraries ' + Format.bytes(memory.backend_bytes));
      if (memory.available_bytes) {
        const used = memory.device_total + (memory.backend_bytes || 0);
        parts.push(`of ${Format.bytes(memory.available_bytes)} available (${
            Format.percent(used / memory.available_bytes)})`);
      }
    }
    return parts.join(', ');
  }
  function cards(context) {
    const {make, wideCard} = Elements;
    return context.runs.flatMap((run) => {
      const memory = run.detail && run.detail.layout && run.detail.layout.memory;
      if (!memory) return [];
      const of = context.runs.length > 1 ? ' of ' + run.name : '';
      const regions = [...new Set(
          [...(memory.device || []), ...(memory.host || [])].map((entry) => entry.region))];
      const colours = new Map(
          regions.map((region, i) => [region, Theme.series(kColours[i % kColours.length])]));
      return ['device', 'host'].filter((where) => (memory[where] || []).length).map((where) => {
        const title = (where === 'device' ? 'Device memory' : 'Host memory') + of;
        const made = wideCard(
            title, make('p', {text: describe(memory, where)}),
            treemap(memory[where], title, colours, kHeights[where]),
            regionKey(memory[where], colours));
        made.dataset.memory = where;
        return made;
      });
    });
  }
  return {cards};
})();
