'use strict';

// The names of runs on the page. Runs in different folders may have the same name: then the folders
// before it are added, as few as tell the runs apart.
const RunNames = (() => {
  const kMostParts = 8;  // folders are searched six levels deep

  function shownOf(runs) {
    const names = new Map();
    for (const group of groupedByName(runs).values())
      if (group.length === 1)
        names.set(group[0].id, group[0].leaf);
      else
        nameByFolders(group, names);
    return names;
  }
  function groupedByName(runs) {
    const groups = new Map();
    for (const run of runs) {
      if (!groups.has(run.leaf)) groups.set(run.leaf, []);
      groups.get(run.leaf).push(run);
    }
    return groups;
  }
  function nameByFolders(group, names) {
    let left = group.map(({id}) => id);
    for (let parts = 2; parts <= kMostParts && left.length; ++parts) {
      const end = (id) => id.split('/').slice(-parts).join('/');
      const counts = new Map();
      for (const {id} of group) counts.set(end(id), (counts.get(end(id)) || 0) + 1);
      for (const id of left)
        if (counts.get(end(id)) === 1) names.set(id, end(id));
      left = left.filter((id) => !names.has(id));
    }
    for (const id of left) names.set(id, id);
  }
  return {shownOf};
})();
