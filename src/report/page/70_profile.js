'use strict';

// Profiles of the runs: the categories of a step, operations, roofline, idle gaps.
const ProfilePanel = (() => {
  const {card, column, make, named, numbers, table, wideCard} = Elements;
  const kNoName = '(none)';  // work outside of all phases or layers
  const ms = (value) => Format.seconds(Format.known(value) ? value / 1000 : null);

  function categoryBar(categories, total) {
    return make(
        'div', {class: 'bar', role: 'img', 'aria-label': 'Categories of a step'},
        ...categories.map((category) => {
          const part = make('div', {'data-category': category.name});
          part.style.width = (total ? 100 * category.ms / total : 0) + '%';
          part.style.background = Theme.profile(category.name);
          Tooltip.attach(
              part,
              () => `${category.name}: ${ms(category.ms)} per step, ${
                  Format.percent(category.ms / total)}`);
          return part;
        }));
  }
  function categoryTable(categories, total) {
    const part = (row) => Format.percent(Format.known(row.share) ? row.share : row.ms / total);
    return table(
        [
          column('category', (row) => named(Theme.profile(row.name), row.name)),
          numbers('per step', (row) => ms(row.ms)), numbers('share', part)
        ],
        categories);
  }
  function share(value, most) {
    const bar = make('span', {class: 'share'});
    bar.style.width = Math.max(1, 90 * value / most) + 'px';
    return bar;
  }
  function operationTable(operations) {
    const sorted = [...operations].sort((a, b) => b.ms - a.ms).slice(0, 200);
    const most = sorted.length ? sorted[0].ms : 1;
    const has = (key) => sorted.some((row) => Format.known(row[key]));
    const columns = [
      column('operation', (row) => row.name, 'mono value'),
      numbers('calls', (row) => Format.number(row.calls)),
      numbers('per step', (row) => ms(row.ms)),
      column('', (row) => share(row.ms, most)),
      numbers('share', (row) => Format.percent(row.share)),
    ];
    if (sorted.some((row) => row.phase))
      columns.splice(1, 0, column('phase', (row) => row.phase || kNoName));
    if (has('flops_per_s'))
      columns.push(numbers('FLOP/s', (row) => Format.si(row.flops_per_s || null)));
    if (has('bytes_per_s'))
      columns.push(numbers('bytes/s', (row) => Format.si(row.bytes_per_s || null)));
    if (sorted.some((row) => row.intensity > 0))
      columns.push(numbers('FLOP/byte', (row) => Format.number(row.intensity || null, 3)));
    if (has('efficiency'))
      columns.push(numbers('of attainable', (row) => Format.percent(row.efficiency)));
    return make('div', {class: 'tall'}, table(columns, sorted));
  }
  // Lists whose members are not fixed (layers, gaps): a column per simple member.
  function generic(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter(
        (name) => rows.some((row) => typeof row[name] !== 'object'));
    const text = (name, value) => {
      if (name === 'name' && value === '') return kNoName;
      if (!Format.known(value))
        return value === null || value === undefined || value === '' ? Format.kUnknown :
                                                                       String(value);
      if (name === 'share' || name === 'efficiency') return Format.percent(value);
      return name === 'ms' || name.endsWith('_ms') ? ms(value) : Format.number(value);
    };
    const columns = names.map((name) => {
      const title = name.replace(/_ms$/, '').replace(/^ms$/, 'time').replace(/_/g, ' ');
      const made = rows.some((row) => Format.known(row[name])) ? numbers : column;
      return made(title, (row) => text(name, row[name]));
    });
    return make('div', {class: 'tall'}, table(columns, rows.slice(0, 100)));
  }
  // What the host did while the device had nothing to do.
  function idle({ms: sum, share: part, gaps, hosts}) {
    const text = `${ms(sum)} per step (${Format.percent(part)}) in ${
        Format.number(gaps)} gaps. Meanwhile the host was in:`;
    return [
      make('p', {text}),
      generic(hosts.map((row) => ({host: row.host || 'nothing that was recorded', ms: row.ms})))
    ];
  }
  // Per step: all communication, and that of each group. Groups overlap: they do not add up.
  function communicationTable(communication, step_ms) {
    const rows = [
      {...communication, name: 'all'},
      ...Object.entries(communication.groups || {}).map(([name, group]) => ({...group, name}))
    ];
    const ofStep = (value) => ms(value) +
        (step_ms > 0 && Format.known(value) ? `, ${Format.percent(value / step_ms)}` : '');
    return table(
        [
          column('group', (row) => row.name),
          numbers('time, share of step', (row) => ofStep(row.ms)),
          numbers('exposed', (row) => ofStep(row.exposed_ms)),
          numbers('waiting for a rank', (row) => ofStep(row.waiting_ms)),
          numbers('overlaps with compute', (row) => Format.percent(row.hidden_share)),
          numbers('bytes', (row) => Format.bytes(row.bytes)),
        ],
        rows);
  }

  function chooser(run, context) {
    const names = run.detail.profiles;
    if (names.length < 2) return null;
    const select = make(
        'select', {
          'aria-label': 'Profile of ' + run.name,
          onchange: () => context.chooseProfile(run.id, select.value)
        },
        ...names.map(
            (name) =>
                make('option', {value: name, text: name, selected: name === run.profile.name})));
    return make('div', {class: 'tools'}, select);
  }
  function describe(profile) {
    const parts = [];
    if (Array.isArray(profile.steps) && profile.steps.length)
      parts.push('steps ' + profile.steps[0] + ' to ' + profile.steps[profile.steps.length - 1]);
    if (profile.device)
      parts.push(typeof profile.device === 'string' ? profile.device : profile.device.name || '');
    if (Array.isArray(profile.ranks) && profile.ranks.length > 1)
      parts.push('mean of ' + profile.ranks.length + ' ranks');
    if (Format.known(profile.utilisation))
      parts.push('the device computes ' + Format.percent(profile.utilisation) + ' of the time');
    return parts.filter(Boolean).join(' · ');
  }
  function cardsOf(run, context) {
    const profile = run.profile.data;
    const {of} = run;
    const made = [];
    const categories = profile.categories || [];
    if (categories.length) {
      const total = categories.reduce((sum, category) => sum + category.ms, 0);
      made.push(wideCard(
          'A step' + of + ', ' + ms(total), chooser(run, context),
          make('p', {text: describe(profile)}), categoryBar(categories, total),
          make('div', {class: 'narrow'}, categoryTable(categories, total))));
      made[0].dataset.profile = run.id;
    }
    if ((profile.hints || []).length)
      made.push(wideCard(
          'Hints' + of,
          make(
              'ul', {class: 'hints'},
              ...profile.hints.map((hint) => make('li', {text: String(hint)})))));
    const operations = profile.operations || [];
    if (operations.length) made.push(wideCard('Operations' + of, operationTable(operations)));
    const roofline = Roofline.drawing(profile);
    if (roofline)
      made.push(wideCard(
          'Roofline' + of, roofline, make('p', {
            text:
                'Each circle is an operation, its area the time per step. The line is the most that the device can do at this many FLOPs per byte.'
          })));
    if ((profile.phases || []).length) made.push(card('Phases' + of, generic(profile.phases)));
    if ((profile.layers || []).length) made.push(card('Layers' + of, generic(profile.layers)));
    if (profile.idle && (profile.idle.hosts || []).length)
      made.push(card('Idle time of the device' + of, ...idle(profile.idle)));
    if ((profile.gaps || []).length)
      made.push(wideCard('Longest idle gaps' + of, generic(profile.gaps)));
    if (profile.communication && profile.communication.ms > 0)
      made.push(wideCard(
          'Communication per step' + of,
          make(
              'div', {class: 'scroll'},
              communicationTable(profile.communication, profile.step_ms))));
    return made;
  }
  // A profile that is being read, or that cannot be shown.
  function noteOf(run, context) {
    const {name, problem} = run.profile;
    const text =
        problem ? `The profile ${name} is not shown: ${problem}.` : `Reading the profile ${name} …`;
    const title = run.of && 'Profile' + run.of;
    return wideCard(title, chooser(run, context), make('p', {class: 'profile-note', text}));
  }
  function cards(context) {
    const withProfile = context.runs.filter((run) => run.profile && run.profile.data);
    const others = context.runs.filter((run) => run.profile && !run.profile.data);
    const difference =
        withProfile.length > 1 ? ProfileDifference.cards(withProfile[0], withProfile[1]) : [];
    return [
      ...difference, ...withProfile.flatMap((run) => cardsOf(run, context)),
      ...others.map((run) => noteOf(run, context))
    ];
  }
  return {cards, ms};
})();

// Operations in a log-log plane: FLOPs per byte against FLOP/s.
const Roofline = (() => {
  const {svg} = Elements;
  const kWidth = 900, kHeight = 320;
  const kArea = {left: 62, right: 885, top: 12, bottom: 282};

  function pointsOf(profile) {
    return (profile.operations || [])
        .map((operation) => ({
               ...operation,
               flops: operation.flops_per_s,
               intensity: Format.known(operation.intensity) ?
                   operation.intensity :
                   operation.flops_per_s / operation.bytes_per_s,
             }))
        .filter(
            (point) => point.flops > 0 && point.intensity > 0 && Number.isFinite(point.intensity));
  }
  const limit = (profile, name) =>
      profile[name] ?? (profile.device && profile.device[name]) ?? null;

  // The roof: given by peak and bandwidth, otherwise by what the operations say is attainable.
  function roofOf(profile, points, low, high) {
    const peak = limit(profile, 'peak_flops'), bandwidth = limit(profile, 'memory_bytes_per_s');
    if (peak > 0 && bandwidth > 0) {
      const ridge = peak / bandwidth;
      const ends = [low, ridge, high].filter((x) => x >= low && x <= high);
      return ends.map((x) => [x, Math.min(peak, bandwidth * x)]);
    }
    return points.filter((point) => point.attainable > 0 && point.work !== 'memory')
        .map((point) => [point.intensity, point.attainable])
        .sort((a, b) => a[0] - b[0]);
  }
  function axes(x, y) {
    const parts = [];
    for (const mark of Scale.marks(x, 10)) {
      const at = x.pixel(mark);
      parts.push(
          svg('line', {class: 'gridline', x1: at, x2: at, y1: kArea.top, y2: kArea.bottom}),
          svg('text',
              {x: at, y: kArea.bottom + 15, 'text-anchor': 'middle', text: Format.si(mark)}));
    }
    for (const mark of Scale.marks(y, 8)) {
      const at = y.pixel(mark);
      parts.push(
          svg('line', {class: 'gridline', x1: kArea.left, x2: kArea.right, y1: at, y2: at}),
          svg('text', {x: kArea.left - 6, y: at + 4, 'text-anchor': 'end', text: Format.si(mark)}));
    }
    parts.push(
        svg('text', {
          x: (kArea.left + kArea.right) / 2,
          y: kHeight - 6,
          'text-anchor': 'middle',
          text: 'FLOPs per byte'
        }),
        svg('text', {x: 4, y: 10, text: 'FLOP/s'}));
    return parts;
  }
  function circle(point, x, y, most) {
    const radius = Math.max(3, 18 * Math.sqrt(point.ms / most));
    const colour = {attention: 'series-1', matmul: 'series-0'}[point.work] || 'series-2';
    const made = svg('circle', {
      cx: x.pixel(point.intensity),
      cy: y.pixel(point.flops),
      r: radius,
      fill: Theme.colour(colour)
    });
    Tooltip.attach(
        made,
        () => `${point.name}: ${ProfilePanel.ms(point.ms)} per step, ${
                  Format.si(point.flops, 'FLOP/s')} at ` +
            `${Format.number(point.intensity, 3)} FLOPs per byte` +
            (Format.known(point.efficiency) ?
                 `, ${Format.percent(point.efficiency)} of attainable` :
                 ''));
    return made;
  }
  function drawing(profile) {
    const points = pointsOf(profile);
    if (points.length < 2) return null;
    const intensities = points.map((point) => point.intensity);
    const rangeX = Scale.padded(Math.min(...intensities), Math.max(...intensities), true, 0.15);
    const roof = roofOf(profile, points, rangeX[0], rangeX[1]);
    const heights = [...points.map((point) => point.flops), ...roof.map(([, height]) => height)];
    const rangeY = Scale.padded(Math.min(...heights), Math.max(...heights), true, 0.08);
    const x = Scale.make(rangeX[0], rangeX[1], kArea.left, kArea.right, true);
    const y = Scale.make(rangeY[0], rangeY[1], kArea.bottom, kArea.top, true);
    const most = Math.max(...points.map((point) => point.ms));
    const path =
        roof.map(([at, height], i) => (i ? 'L' : 'M') + x.pixel(at) + ' ' + y.pixel(height))
            .join(' ');
    return svg(
        'svg', {
          class: 'roofline',
          viewBox: `0 0 ${kWidth} ${kHeight}`,
          role: 'img',
          'aria-label': 'Roofline of the operations',
          'data-points': points.length
        },
        ...axes(x, y), roof.length > 1 ? svg('path', {d: path, 'stroke-width': 1.5}) : null,
        ...[...points].sort((a, b) => b.ms - a.ms).map((point) => circle(point, x, y, most)));
  }
  return {drawing};
})();

// What got slower between the profiles of two runs: by category and by operation, per step.
const ProfileDifference = (() => {
  const {column, make, numbers, wideCard} = Elements;
  // [{name, before, after, delta}] by |delta|. `before` or `after` is null if only the other one
  // has it.
  function rowsOf(first, second) {
    const sum = (list) => {
      const sums = new Map();
      for (const {name, ms} of list || []) sums.set(name, (sums.get(name) || 0) + ms);
      return sums;
    };
    const before = sum(first), after = sum(second);
    const rows = [...new Set([...before.keys(), ...after.keys()])].map(
        (name) => ({
          name,
          before: before.get(name) ?? null,
          after: after.get(name) ?? null,
          delta: (after.get(name) || 0) - (before.get(name) || 0),
        }));
    return rows.sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  }
  function changeOf(row) {
    if (row.before === null) return 'only in the second';
    if (row.after === null) return 'only in the first';
    return row.before > 0 ? (row.delta >= 0 ? '+' : '') + Format.percent(row.delta / row.before) :
                            '';
  }
  function table(rows, first, second, title) {
    const sign = (row) =>
        (Math.abs(row.delta) <= 0.01 * Math.max(row.before || 0, row.after || 0) ? null :
             row.delta > 0                                                       ? 'worse' :
                                                                                   'better');
    const difference = (row) => make(
        'span', {class: sign(row), text: (row.delta > 0 ? '+' : '') + ProfilePanel.ms(row.delta)});
    const columns = [
      column(title, (row) => row.name, 'mono value'),
      numbers(first.name, (row) => ProfilePanel.ms(row.before)),
      numbers(second.name, (row) => ProfilePanel.ms(row.after)),
      numbers('difference', difference),
      numbers('', changeOf),
    ];
    return make('div', {class: 'tall medium'}, Elements.table(columns, rows.slice(0, 100)));
  }
  function cards(first, second) {
    const operations = rowsOf(first.profile.data.operations, second.profile.data.operations);
    const categories = rowsOf(first.profile.data.categories, second.profile.data.categories);
    const made = [];
    if (operations.length)
      made.push(wideCard(
          'What changed from ' + first.name + ' to ' + second.name,
          table(operations, first, second, 'operation')));
    if (categories.length)
      made.push(wideCard('Categories', table(categories, first, second, 'category')));
    if (made.length) made[0].id = 'profile-difference';
    return made;
  }
  return {cards};
})();
