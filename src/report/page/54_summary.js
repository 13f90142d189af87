'use strict';

// The figures of the main run, above the curves.
const Summary = (() => {
  function figure(label, value, unit, title, bad) {
    const {make} = Elements;
    return make(
        'div', {class: 'figure', title: title || null}, make('div', {class: 'label', text: label}),
        make(
            'div', {class: bad ? 'value worse' : 'value', text: value},
            unit ? make('small', {text: ' ' + unit}) : null));
  }
  function figures(run) {
    const known = Format.known;
    const list = [
      figure(
          'step', Format.count(run.step),
          run.total_steps ? 'of ' + Format.count(run.total_steps) : ''),
      figure(
          'loss', RunsList.lossOf(run), '', 'of the last step, nats per token',
          RunsList.lossIsNotFinite(run)),
    ];
    if (known(run.valid_loss)) list.push(figure('validation loss', Format.number(run.valid_loss)));
    list.push(figure('tokens', Format.tokens(run.tokens)));
    if (known(run.tokens_per_s))
      list.push(figure('speed', Format.si(run.tokens_per_s), 'tokens/s'));
    if (known(run.mfu)) list.push(figure('MFU', Format.percent(run.mfu)));
    if (known(run.eta_s) && run.state === 'running')
      list.push(figure('ETA', Format.seconds(run.eta_s)));
    if (known(run.goodput))
      list.push(figure(
          'goodput', Format.percent(run.goodput),
          run.attempts > 1 ? run.attempts + ' attempts' : ''));
    if (known(run.energy_j)) list.push(figure('energy', Format.joules(run.energy_j)));
    if (known(run.j_per_token)) list.push(figure('J/token', Format.number(run.j_per_token, 3)));
    if (known(run.ranks) && run.ranks > 1) list.push(figure('ranks', Format.count(run.ranks)));
    return list;
  }
  function describe(run) {
    const parts = [];
    if (run.model) parts.push(run.model);
    if (run.stage) parts.push('stage ' + run.stage);
    if (run.updated_s) parts.push('updated ' + Format.time(run.updated_s));
    return parts.join(' · ');
  }
  function draw(host, run, others) {
    const {make} = Elements;
    if (!run) {
      host.replaceChildren();
      return;
    }
    const state = RunsList.shownState(run);
    const message = RunsList.messageOf(run);
    host.replaceChildren(
        make(
            'div', {class: 'main-title'}, make('h2', {id: 'main-name', text: run.name}),
            make('span', {class: 'badge state-' + state, text: state}),
            make('span', {class: 'soft', text: describe(run)}),
            others ? make('span', {
              class: 'soft',
              text: 'and ' + others + (others === 1 ? ' other run' : ' other runs')
            }) :
                     null,
            message ? make('div', {class: 'message', text: message}) : null),
        make('div', {class: 'figures-strip'}, ...figures(run)));
  }
  return {draw};
})();
