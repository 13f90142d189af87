'use strict';

// Texts that the model wrote at checkpoints. The slider chooses the step.
const SamplesPanel = (() => {
  function cards(context) {
    const {make, wideCard} = Elements;
    const withSamples =
        context.runs.filter((run) => run.detail && (run.detail.samples || []).length);
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
    const {make} = Elements;
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
  const kBad = ['failed', 'diverged', 'spike', 'stalled'];
  function cards(context) {
    const {make, table, wideCard} = Elements;
    const rows = context.runs.flatMap(
        (run) =>
            ((run.detail && run.detail.events) || []).map((event) => ({...event, run: run.name})));
    if (!rows.length) return [];
    rows.sort((a, b) => (b.time_s || 0) - (a.time_s || 0));
    const columns = [
      {title: 'time', class: 'mono', cell: (row) => Format.time(row.time_s)},
      {
        title: 'event',
        cell: (row) =>
            make('span', {class: kBad.includes(row.event) ? 'worse' : '', text: row.event})
      },
      {title: 'step', number: true, cell: (row) => Format.count(row.step)},
      {title: 'message', class: 'value', cell: (row) => row.message || ''},
    ];
    if (context.runs.length > 1) columns.splice(1, 0, {title: 'run', cell: (row) => row.run});
    return [wideCard(null, make('div', {class: 'tall'}, table(columns, rows)))];
  }
  return {cards};
})();

// The end of the main run's log; new lines are added while it trains.
const LogPanel = (() => {
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
    return Elements.make('div', {class: kind, text: line || ' '});
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
    const {make, wideCard} = Elements;
    const [main] = context.runs;
    const lines = main && (received.get(main.id) || (main.detail && main.detail.log)) || [];
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
