'use strict';

// config.yaml of the main run with colours; lines of keys that differ between the selected runs are
// marked.
const ConfigurationPanel = (() => {
  // [{kind, text}] of one line. Only colours depend on it: text that it misreads is still shown in
  // full.
  function pieces(line) {
    const comment = /(^|\s)#.*$/.exec(line);
    const body = comment ? line.slice(0, comment.index) : line;
    const found = /^(\s*(?:- )?)([^\s:#"'{[][^:]*)(:)(\s.*|)$/.exec(body);
    const result = found ?
        [
          {text: found[1]}, {kind: 'yaml-key', text: found[2]}, {text: found[3]},
          {kind: kindOf(found[4]), text: found[4]}
        ] :
        [{kind: kindOf(body), text: body}];
    if (comment) result.push({kind: 'yaml-comment', text: line.slice(comment.index)});
    return result;
  }
  function kindOf(value) {
    return /^[\s[\]\-+0-9.,eE]*$|^\s*(true|false|null|~)\s*$/.test(value) ? 'yaml-value' :
                                                                            'yaml-text';
  }
  // The dotted key of each line, by indentation.
  function dottedKeys(lines) {
    const path = [];
    return lines.map((line) => {
      const found = /^(\s*)([^\s:#\-][^:]*):/.exec(line);
      if (!found) return path.length ? path.map((part) => part.key).join('.') : null;
      while (path.length && path[path.length - 1].indent >= found[1].length) path.pop();
      path.push({indent: found[1].length, key: found[2].trim()});
      return path.map((part) => part.key).join('.');
    });
  }
  function view(text, differing) {
    const {make} = Elements;
    const lines = text.replace(/\n$/, '').split('\n');
    const keys = dottedKeys(lines);
    return make(
        'pre', {class: 'configuration', tabindex: '0', 'aria-label': 'Configuration'},
        ...lines.map(
            (line, i) => make(
                'div', {class: differing.has(keys[i]) ? 'differs' : null},
                ...pieces(line || ' ')
                    .map((piece) => make('span', {class: piece.kind, text: piece.text})))));
  }
  function cards(context) {
    const {wideCard} = Elements;
    const [main] = context.runs;
    if (!main || !main.detail || !main.detail.config) return [];
    const differing =
        new Set(((context.compare && context.compare.configuration) || []).map((row) => row.key));
    return [wideCard(
        context.runs.length > 1 ? 'Configuration of ' + main.name : null,
        view(main.detail.config, differing))];
  }
  return {cards};
})();

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
