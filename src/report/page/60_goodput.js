'use strict';

// Where the time of a run went: a strip over all attempts, and tables.
const GoodputPanel = (() => {
  const {card, column, make, named, numbers, table, wideCard} = Elements;
  const kKinds = [
    'productive', 'recomputed', 'checkpoint', 'validation', 'startup', 'waiting', 'down', 'other'
  ];

  // Seconds of each kind in each of `columns` equal parts of [begin, end].
  function columnShares(timeline, begin, end, columns) {
    const shares = Array.from({length: columns}, () => new Float64Array(kKinds.length));
    const width = (end - begin) / columns;
    for (const {kind, begin_s, end_s} of timeline) {
      const row = Math.max(0, kKinds.indexOf(kind) < 0 ? kKinds.length - 1 : kKinds.indexOf(kind));
      const last = Math.min(columns - 1, Math.floor((end_s - begin) / width));
      for (let i = Math.max(0, Math.floor((begin_s - begin) / width)); i <= last; ++i) {
        const overlap =
            Math.min(end_s, begin + (i + 1) * width) - Math.max(begin_s, begin + i * width);
        if (overlap > 0) shares[i][row] += overlap;
      }
    }
    return shares;
  }
  // Each column of pixels is a stack of what happened in its time, so that short events stay
  // visible.
  function drawStrip(canvas, timeline, begin, end) {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const context = Frames.prepare(canvas, width, height);
    if (!context) return;
    columnShares(timeline, begin, end, width).forEach((column, x) => {
      const total = column.reduce((sum, value) => sum + value, 0);
      let y = height;
      column.forEach((value, row) => {
        if (!value) return;
        const part = height * value / total;
        context.fillStyle = Theme.goodput(kKinds[row]);
        context.fillRect(x, y - part, 1, part);
        y -= part;
      });
    });
  }
  function strip(timeline) {
    const begin = timeline.reduce((least, part) => Math.min(least, part.begin_s), Infinity);
    const end = timeline.reduce((most, part) => Math.max(most, part.end_s), -Infinity);
    const canvas = make('canvas', {role: 'img', 'aria-label': 'What the run did over time'});
    const draw = () => drawStrip(canvas, timeline, begin, end);
    new ResizeObserver(() => Frames.request(draw)).observe(canvas);
    canvas.addEventListener('pointermove', (event) => {
      const at = begin + (end - begin) * event.offsetX / canvas.clientWidth;
      const part = timeline.find((candidate) => candidate.begin_s <= at && at < candidate.end_s);
      if (!part) {
        Tooltip.hide();
        return;
      }
      Tooltip.show(
          event.clientX, event.clientY,
          `${Format.time(at)}: ${part.kind}, ${
              Format.seconds(part.end_s - part.begin_s)} of attempt ${part.attempt}`);
    });
    canvas.addEventListener('pointerleave', Tooltip.hide);
    const marks = [0, 0.25, 0.5, 0.75, 1].map(
        (share) => make('span', {
          text: share === 0 ? Format.time(begin) : '+' + Format.seconds((end - begin) * share)
        }));
    return [
      make('div', {class: 'strip', 'data-goodput': timeline.length}, canvas),
      make('div', {class: 'scale'}, ...marks),
      make('p', {text: 'Within an attempt: the sums by kind, not in order of time.'})
    ];
  }
  function categoryTable(categories) {
    const total = categories.reduce((sum, category) => sum + category.seconds, 0);
    const columns = [
      column('time went into', (row) => named(Theme.goodput(row.name), row.name)),
      numbers('time', (row) => Format.seconds(row.seconds)),
      numbers('share', (row) => Format.percent(total ? row.seconds / total : 0)),
    ];
    if (categories.some((category) => Format.known(category.joules)))
      columns.push(numbers('energy', (row) => Format.joules(row.joules)));
    return table(columns, categories.filter((category) => category.seconds > 0));
  }
  function attemptTable(attempts) {
    const steps = (row) => Format.count(row.first_step) + ' – ' + Format.count(row.last_step);
    const end = (row) => make(
        'span',
        {class: 'state-' + row.state, text: [row.state, row.reason].filter(Boolean).join(': ')});
    const columns = [
      numbers('attempt', (row) => String(row.number)),
      column('launched', (row) => Format.time(row.launched_s)),
      numbers('lasted', (row) => Format.seconds(row.last_s - row.launched_s)),
      numbers('steps', steps),
      numbers('nodes', (row) => String(row.nodes ?? '')),
      column('ended', end),
    ];
    const rows = attempts.map((attempt, i) => ({...attempt, number: i + 1}));
    return make('div', {class: 'tall'}, table(columns, rows));
  }

  function cards(context) {
    return context.runs.flatMap((run) => {
      const {of, detail: {goodput}} = run;
      if (!goodput || !goodput.categories || !goodput.categories.length) return [];
      if (goodput.problem)
        return [wideCard('Goodput' + of, make('p', {text: 'goodput.jsonl ' + goodput.problem}))];
      const made = [];
      if (goodput.timeline && goodput.timeline.length)
        made.push(wideCard('Timeline' + of, ...strip(goodput.timeline)));
      made.push(card('Goodput' + of, categoryTable(goodput.categories)));
      if (goodput.attempts && goodput.attempts.length)
        made.push(card('Attempts' + of, attemptTable(goodput.attempts)));
      return [make('div', {class: 'columns-goodput'}, ...made)];
    });
  }
  return {cards};
})();
