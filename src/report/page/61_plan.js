'use strict';

// The memory plan as treemaps: the area of a box is its size, the colour its region.
const MemoryPanel = (() => {
  const {drawing, make, named, svg, wideCard} = Elements;
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
    return drawing(
        {class: 'treemap', 'aria-label': title}, height,
        (width) =>
            layout(entries, width, height).map((each) => box(each, colours.get(each.item.region))));
  }
  function regionKey(entries, colours) {
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
    return context.runs.flatMap((run) => {
      const memory = run.detail.layout && run.detail.layout.memory;
      if (!memory) return [];
      const regions = [...new Set(
          [...(memory.device || []), ...(memory.host || [])].map((entry) => entry.region))];
      const colours = new Map(
          regions.map((region, i) => [region, Theme.series(kColours[i % kColours.length])]));
      return ['device', 'host'].filter((where) => (memory[where] || []).length).map((where) => {
        const title = (where === 'device' ? 'Device memory' : 'Host memory') + run.of;
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

// The schedule of the pipeline: a row per stage, a box per forward or backward of a micro-batch.
const PipelinePanel = (() => {
  const {drawing, make, named, svg, wideCard} = Elements;
  const kRow = 22, kLeft = 56, kMostActions = 20000;

  function box(action, left, width, y) {
    const rect = svg('rect', {
      x: left,
      y: y + 1,
      width: Math.max(0.5, width - 0.5),
      height: kRow - 3,
      fill: Theme.action(action.kind),
      rx: 1
    });
    // Chunks after the first are paler, as in the figures of the literature.
    rect.setAttribute('fill-opacity', String(Math.max(0.45, 1 - 0.25 * (action.chunk || 0))));
    const part = svg('g', {class: 'action'}, rect);
    Tooltip.attach(
        part,
        () => `stage ${action.stage}: ${action.kind.replace('_', ' of ')}, micro-batch ${
                  action.micro_batch}` +
            (action.chunk ? `, chunk ${action.chunk}` : '') +
            `, ${Format.number(action.begin)} to ${Format.number(action.end)}`);
    const text = String(action.micro_batch);
    if (width > 6.5 * text.length + 5)
      part.append(svg('text', {x: left + width / 2, y: y + kRow - 8, text}));
    return part;
  }
  function diagram(pipeline) {
    const end = pipeline.actions.reduce((latest, action) => Math.max(latest, action.end), 0);
    const draw = (width) => {
      const scale = (width - kLeft) / end;
      const names = Array.from(
          {length: pipeline.stages},
          (unused, stage) =>
              svg('text', {x: 0, y: stage * kRow + kRow - 8, text: 'stage ' + stage}));
      const boxes = pipeline.actions.slice(0, kMostActions)
                        .map(
                            (action) =>
                                box(action, kLeft + action.begin * scale,
                                    (action.end - action.begin) * scale, action.stage * kRow));
      return [...names, ...boxes];
    };
    return drawing(
        {class: 'pipeline', 'aria-label': 'Schedule of the pipeline'}, pipeline.stages * kRow + 4,
        draw);
  }
  function describe(pipeline) {
    const parts = ['schedule ' + pipeline.schedule, pipeline.stages + ' stages'];
    if (pipeline.chunks > 1) parts.push(pipeline.chunks + ' chunks per stage');
    parts.push(pipeline.micro_batches + ' micro-batches');
    if (pipeline.shown_micro_batches < pipeline.micro_batches)
      parts.push('the first ' + pipeline.shown_micro_batches + ' are drawn');
    if (Format.known(pipeline.bubble)) parts.push('bubble ' + Format.percent(pipeline.bubble));
    return parts.join(' · ');
  }
  function cards(context) {
    return context.runs.flatMap((run) => {
      const pipeline = run.detail.layout && run.detail.layout.pipeline;
      if (!pipeline || !(pipeline.stages <= 4096) || !(pipeline.actions || []).length) return [];
      const kinds = [...new Set(pipeline.actions.map((action) => action.kind))];
      return [wideCard(
          'Pipeline' + run.of, make('p', {text: describe(pipeline)}),
          make('div', {class: 'scroll'}, diagram(pipeline)),
          make(
              'div', {class: 'key'},
              ...kinds.map((kind) => named(Theme.action(kind), kind.replace('_', ' of '))),
              make('span', {text: 'time in units of one forward'})))];
    });
  }
  return {cards};
})();
