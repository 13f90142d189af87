'use strict';

// Profiles of the runs: the categories of a step, operations, roofline, idle gaps.
const ProfilePanel = (() => {
  const kNoName = '(none)';  // work outside of all phases or layers
  const ms = (value) => Format.seconds(Format.known(value) ? value / 1000 : null);

  function categoryBar(categories, total) {
    const {make} = Elements;
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
    const {named, table} = Elements;
    return table(
        [
          {title: 'category', cell: (row) => named(Theme.profile(row.name), row.name)},
          {title: 'per step', number: true, cell: (row) => ms(row.ms)},
          {
            title: 'share',
            number: true,
            cell: (row) => Format.percent(Format.known(row.share) ? row.share : row.ms / total)
          },
        ],
        categories);
  }
  function share(value, most) {
    const bar = Elements.make('span', {class: 'share'});
    bar.style.width = Math.max(1, 90 * value / most) + 'px';
    return bar;
  }
  function operationTable(operations) {
    const {make, table} = Elements;
    const sorted = [...operations].sort((a, b) => b.ms - a.ms).slice(0, 200);
    const most = sorted.length ? sorted[0].ms : 1;
    const has = (key) => sorted.some((row) => Format.known(row[key]));
    const columns = [
      {title: 'operation', class: 'mono value', cell: (row) => row.name},
      {title: 'calls', number: true, cell: (row) => Format.number(row.calls)},
      {title: 'per step', number: true, cell: (row) => ms(row.ms)},
      {title: '', cell: (row) => share(row.ms, most)},
      {title: 'share', number: true, cell: (row) => Format.percent(row.share)},
    ];
    if (sorted.some((row) => row.phase))
      columns.splice(1, 0, {title: 'phase', cell: (row) => row.phase || kNoName});
    if (has('flops_per_s'))
      columns.push(
          {title: 'FLOP/s', number: true, cell: (row) => Format.si(row.flops_per_s || null)});
    if (has('bytes_per_s'))
      columns.push(
          {title: 'bytes/s', number: true, cell: (row) => Format.si(row.bytes_per_s || null)});
    if (sorted.some((row) => row.intensity > 0))
      columns.push({
        title: 'FLOP/byte',
        number: true,
        cell: (row) => Format.number(row.intensity || null, 3)
      });
    if (has('efficiency'))
      columns.push(
          {title: 'of attainable', number: true, cell: (row) => Format.percent(row.efficiency)});
    return make('div', {class: 'tall'}, table(columns, sorted));
  }
  // Lists whose members are not fixed (layers, gaps): a column per simple member.
  function generic(rows) {
    const {make, table} = Elements;
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
    return make(
        'div', {class: 'tall'},
        table(
            names.map((name) => ({
                        title: name.replace(/_ms$/, '').replace(/^ms$/, 'time').replace(/_/g, ' '),
                        number: rows.some((row) => Format.known(row[name])),
                        cell: (row) => text(name, row[name]),
                      })),
            rows.slice(0, 100)));
  }
  // What the host did while the device had nothing to do.
  function idle({ms: sum, share: part, gaps, hosts}) {
    const {make} = Elements;
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
    return Elements.table(
        [
          {title: 'group', cell: (row) => row.name},
          {title: 'time, share of step', number: true, cell: (row) => ofStep(row.ms)},
          {title: 'exposed', number: true, cell: (row) => ofStep(row.exposed_ms)},
          {title: 'waiting for a rank', number: true, cell: (row) => ofStep(row.waiting_ms)},
          {
            title: 'overlaps with compute',
            number: true,
            cell: (row) => Format.percent(row.hidden_share)
          },
          {title: 'bytes', number: true, cell: (row) => Format.bytes(row.bytes)},
        ],
        rows);
  }

  function chooser(run, context) {
    const {make} = Elements;
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
    const {card, make, wideCard} = Elements;
    const profile = run.profile.data;
    const of = context.runs.length > 1 ? ' of ' + run.name : '';
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
    const {make, wideCard} = Elements;
    const {name, problem} = run.profile;
    const text =
        problem ? `The profile ${name} is not shown: ${problem}.` : `Reading the profile ${name} …`;
    const of = context.runs.length > 1 ? 'Profile of ' + run.name : null;
    return wideCard(of, chooser(run, context), make('p', {class: 'profile-note', text}));
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
