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
