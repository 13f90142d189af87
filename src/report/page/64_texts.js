'use strict';

// Texts that the model wrote at checkpoints. The slider chooses the step.
const SamplesPanel = (() => {
  const {make, wideCard} = Elements;
  function cards(context) {
    const withSamples = context.runs.filter((run) => (run.detail.samples || []).length);
    if (!withSamples.length) return [];
    const steps = [
      ...new Set(withSamples.flatMap((run) => run.detail.samples.map((sample) => sample.step)))
    ].sort((a, b) => a - b);
    const texts = make('div', {class: 'columns'});
    const label = make('output', { for: 'sample-step'
    });
    const show = (index) => {
      label.textContent = 'step ' + Format.count(steps[index]);
      texts.replaceChildren(
          ...withSamples.map((run) => column(run, steps[index], context.runs.length > 1)));
    };
    const slider = make('input', {
      id: 'sample-step',
      type: 'range',
      min: 0,
      max: steps.length - 1,
      value: steps.length - 1,
      step: 1,
      'aria-label': 'Step of the samples',
      disabled: steps.length < 2,
      oninput: () => show(Number(slider.value)),
    });
    show(steps.length - 1);
    return [wideCard(null, make('div', {class: 'sample-slider'}, slider, label), texts)];
  }
  // The newest samples of a run that are not newer than the step.
  function column(run, step, named) {
    const {samples} = run.detail;
    const newest = Math.max(
        ...samples.map((sample) => sample.step).filter((other) => other <= step), -Infinity);
    const title = named ? run.name +
            (newest === step || newest === -Infinity ? '' : ', step ' + Format.count(newest)) :
                          null;
    return make(
        'div', {'data-samples': run.id}, title ? make('h3', {text: title}) : null,
        ...samples.filter((sample) => sample.step === newest)
            .map(
                (sample) => make(
                    'div', {class: 'sample'}, make('span', {class: 'prompt', text: sample.prompt}),
                    make('span', {text: sample.text}))));
  }
  return {cards};
})();

// What happened to the runs, newest first.
const EventsPanel = (() => {
  const {column, make, numbers, table, wideCard} = Elements;
  const kBad = ['failed', 'diverged', 'spike', 'stalled'];
  function cards(context) {
    const rows = context.runs.flatMap(
        (run) => (run.detail.events || []).map((event) => ({...event, run: run.name})));
    if (!rows.length) return [];
    rows.sort((a, b) => (b.time_s || 0) - (a.time_s || 0));
    const name = (row) =>
        make('span', {class: kBad.includes(row.event) ? 'worse' : '', text: row.event});
    const columns = [
      column('time', (row) => Format.time(row.time_s), 'mono'),
      column('event', name),
      numbers('step', (row) => Format.count(row.step)),
      column('message', (row) => row.message || '', 'value'),
    ];
    if (context.runs.length > 1) columns.splice(1, 0, column('run', (row) => row.run));
    return [wideCard(null, make('div', {class: 'tall'}, table(columns, rows)))];
  }
  return {cards};
})();

// The end of the main run's log; new lines are added while it trains.
const LogPanel = (() => {
  const {make, wideCard} = Elements;
  const kMostLines = 2000;
  let state = null;  // {id, lines, element, filter}
  // id -> lines of the stream. It may be ahead of the reply that the panel is made from.
  const received = new Map();

  function matches(line) {
    return !state.filter.value || line.toLowerCase().includes(state.filter.value.toLowerCase());
  }
  function lineElement(line) {
    const kind = /\b(error|failed|diverged|fatal)\b/i.test(line) ? 'error' :
        /\b(warning|warn|spike|straggler)\b/i.test(line)         ? 'warning' :
                                                                   null;
    return make('div', {class: kind, text: line || ' '});
  }
  function atEnd() {
    const {element} = state;
    return element.scrollHeight - element.scrollTop - element.clientHeight < 30;
  }
  function show() {
    state.element.replaceChildren(...state.lines.filter(matches).map(lineElement));
    state.element.scrollTop = state.element.scrollHeight;
  }
  // What the last lines of a log add to those that are known; null if the two do not overlap.
  function newLines(known, last) {
    for (let at = Math.max(0, known.length - last.length); at < known.length; ++at)
      if (known.slice(at).every((line, i) => line === last[i]))
        return last.slice(known.length - at);
    return null;
  }
  function receive({id, lines, replace}) {
    const known = replace ? [] : received.get(id) || [];
    received.set(id, [...known, ...lines].slice(-kMostLines));
    if (!state || state.id !== id) return;
    const added = replace ? newLines(state.lines, lines) : lines;
    if (added) {
      append(added);
    } else {
      state.lines = [...lines];
      show();
    }
  }
  function append(lines) {
    const follow = atEnd();
    state.lines.push(...lines);
    state.element.append(...lines.filter(matches).map(lineElement));
    while (state.element.childElementCount > kMostLines) state.element.firstChild.remove();
    if (state.lines.length > kMostLines) state.lines.splice(0, state.lines.length - kMostLines);
    if (follow) state.element.scrollTop = state.element.scrollHeight;
  }
  function cards(context) {
    const [main] = context.runs;
    const lines = main && (received.get(main.id) || main.detail.log) || [];
    if (!main || (!lines.length && !context.live)) {
      state = null;
      return [];
    }
    const element = make(
        'pre', {class: 'log wrap', id: 'log', tabindex: '0', 'aria-label': 'Log of ' + main.name});
    const filter = make('input', {
      type: 'search',
      id: 'log-filter',
      placeholder: 'Filter lines',
      'aria-label': 'Show only lines with this text',
      oninput: () => show()
    });
    const wrap = make('input', {
      type: 'checkbox',
      id: 'log-wrap',
      checked: true,
      onchange: () => element.classList.toggle('wrap', wrap.checked)
    });
    state = {id: main.id, lines: [...lines], element, filter};
    const card = wideCard(
        context.runs.length > 1 ? 'Log of ' + main.name : null,
        make('div', {class: 'tools'}, filter, make('label', {}, wrap, 'wrap long lines')), element);
    requestAnimationFrame(show);
    return [card];
  }
  return {
    cards,
    receive,
    // Before a new stream: what the last one sent may be old.
    forget: () => received.clear()
  };
})();

// config.yaml of the main run with colours; lines of keys that differ between the selected runs are
// marked.
const ConfigurationPanel = (() => {
  const {make, wideCard} = Elements;
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
    const [main] = context.runs;
    if (!main || !main.detail.config) return [];
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
  const {column, make, named, numbers, table, wideCard} = Elements;
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
    const runs = context.runs.map((run) => run.summary);
    const rows = kFigures.filter(([, , key]) => !key || runs.some((run) => Format.known(run[key])));
    const columns = [column('', ([title]) => make('span', {class: 'soft', text: title}))];
    context.runs.forEach((run, slot) => columns.push({
      ...numbers(
          '',
          ([, text, key, direction]) => {
            const best = bestOf(runs, key, direction);
            return make('span', {
              class: best !== null && run.summary[key] === best ? 'better' : null,
              text: text(run.summary)
            });
          }),
      run: named(Theme.series(slot), run.name),
    }));
    return withNames(table(columns, rows), columns);
  }
  // Names of runs in the head of a table.
  function withNames(made, columns) {
    const heads = made.querySelectorAll('th');
    columns.forEach((column, i) => column.run && heads[i].replaceChildren(column.run));
    return made;
  }
  function configuration(context) {
    const {compare} = context;
    const slotOf = (id) => context.runs.findIndex((run) => run.id === id);
    // A report compares all its runs: of these, some are shown.
    const shown = [...compare.ids.keys()].filter((i) => slotOf(compare.ids[i]) >= 0);
    const rows = compare.configuration.filter(
        (row) => new Set(shown.map((i) => row.values[i] ?? null)).size > 1);
    if (!rows.length) return make('p', {text: 'The configurations are the same.'});
    const columns = [column('key', (row) => row.key, 'mono')];
    for (const i of shown) {
      const slot = slotOf(compare.ids[i]);
      columns.push({
        ...column('', (row) => row.values[i] ?? Format.kUnknown, 'value mono'),
        run: named(Theme.series(slot), context.runs[slot].name)
      });
    }
    return make('div', {class: 'tall'}, withNames(table(columns, rows), columns));
  }
  function cards(context) {
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
