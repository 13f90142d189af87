'use strict';

// What differs between the selected runs.
const ComparePanel = (() => {
  const kFigures = [
    ['state', (run) => RunsList.shownState(run)],
    ['model', (run) => run.model || Format.kUnknown],
    ['step', (run) => Format.count(run.step), 'step'],
    ['tokens', (run) => Format.tokens(run.tokens), 'tokens'],
    ['loss', RunsList.lossOf, 'loss', -1],
    ['validation loss', (run) => Format.number(run.valid_loss), 'valid_loss', -1],
    ['tokens/s', (run) => Format.si(run.tokens_per_s), 'tokens_per_s', 1],
    ['MFU', (run) => Format.percent(run.mfu), 'mfu', 1],
    ['goodput', (run) => Format.percent(run.goodput), 'goodput', 1],
    ['energy', (run) => Format.joules(run.energy_j), 'energy_j', -1],
    ['J/token', (run) => Format.number(run.j_per_token, 3), 'j_per_token', -1],
    ['ranks', (run) => Format.count(run.ranks), 'ranks'],
    ['attempts', (run) => Format.count(run.attempts), 'attempts'],
  ];
  // The best value of a row, if the runs differ in it. `direction`: 1: more is better, -1: less.
  function bestOf(runs, key, direction) {
    const values = runs.map((run) => run[key]).filter(Format.known);
    if (!direction || values.length < 2 || new Set(values).size < 2) return null;
    return direction > 0 ? Math.max(...values) : Math.min(...values);
  }
  function figures(context) {
    const {make, named, table} = Elements;
    const runs = context.runs.map((run) => run.summary);
    const rows = kFigures.filter(([, , key]) => !key || runs.some((run) => Format.known(run[key])));
    const columns = [{title: '', cell: ([title]) => make('span', {class: 'soft', text: title})}];
    context.runs.forEach((run, slot) => columns.push({
      title: '',
      number: true,
      cell: ([, text, key, direction]) => {
        const best = bestOf(runs, key, direction);
        return make('span', {
          class: best !== null && run.summary[key] === best ? 'better' : null,
          text: text(run.summary)
        });
      },
      head: named(Theme.series(slot), run.name),
    }));
    return withHeads(table(columns, rows), columns);
  }
  function withHeads(made, columns) {
    const heads = made.querySelectorAll('th');
    columns.forEach((column, i) => {
      if (column.head) heads[i].replaceChildren(column.head);
    });
    return made;
  }
  function configuration(context) {
    const {make, named, table} = Elements;
    const {compare} = context;
    const slotOf = (id) => context.runs.findIndex((run) => run.id === id);
    // A report compares all its runs: of these, some are shown.
    const shown = [...compare.ids.keys()].filter((i) => slotOf(compare.ids[i]) >= 0);
    const rows = compare.configuration.filter(
        (row) => new Set(shown.map((i) => row.values[i] ?? null)).size > 1);
    if (!rows.length) return make('p', {text: 'The configurations are the same.'});
    const columns = [{title: 'key', class: 'mono', cell: (row) => row.key}];
    for (const i of shown) {
      const slot = slotOf(compare.ids[i]);
      columns.push({
        title: '',
        class: 'value mono',
        cell: (row) => row.values[i] ?? Format.kUnknown,
        head: named(Theme.series(slot), context.runs[slot].name)
      });
    }
    return make('div', {class: 'tall'}, withHeads(table(columns, rows), columns));
  }
  function cards(context) {
    const {make, wideCard} = Elements;
    if (context.runs.length < 2) return [];
    const made = [wideCard('Figures', make('div', {class: 'scroll medium'}, figures(context)))];
    if (context.compare)
      made.push(wideCard('Configuration keys that differ', configuration(context)));
    made[0].id = 'compare-figures';
    if (made[1]) made[1].id = 'compare-configuration';
    return made;
  }
  return {cards};
})();
