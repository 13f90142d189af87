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
