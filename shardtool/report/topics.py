"""Short explanations for `shardtool scan --explain TOPIC`."""

from __future__ import annotations

TOPICS: dict[str, str] = {
    "ragged": """\
Samples of one data set may have different parts: some pictures have a caption
file, others none. A tar shard holds that well, and webdataset reads it; each
sample is a dict with the parts it has.

Hugging Face datasets takes the columns of a split from its first five samples
and stops with a ValueError when these differ; parts that come later only are
dropped. shardtool plan tells whether the first five of each split agree.

  --require jpg,json                     stop when a sample lacks a part
  --require jpg,json --on-missing skip   leave such samples out, counted
  --require jpg,json --on-missing empty  pack an empty part instead""",
    "keys": """\
A sample is the files that share a key. The key is the path without what comes
after the first dot of the name: cats/0001.jpg and cats/0001.seg.png are parts
jpg and seg.png of sample cats/0001. Folders stay in the key.

  --group-by first-dot   this, the default; what webdataset does, too
  --group-by last-dot    cut at the last dot; dots left in the key become _
  --group-by file        every file is a sample
  --group-by dir         every folder is a sample, its files are the parts
  --group-by 'regex:(?P<key>.+)_(?P<part>left|right).png'""",
    "dots": """\
Readers cut a name at its first dot, so a dot inside a name would merge samples:
22.05.png and 22.06.png both get the key 22. shardtool refuses such names.

  --group-by last-dot    keys 22_05 and 22_06, part png: dots become _

The original path stays in the index.""",
    "duplicates": """\
Two files claim the same part of the same sample: names that differ in case
only (a.JPG, a.jpg), two sources with equal paths, or a rule that cuts too much.

  shardtool scan SRC --duplicates   lists every one of them
  --keep-case                       keeps JPG and jpg apart
  --on-duplicate first              keeps the first in source order
  --on-duplicate skip               leaves all of them out""",
    "labels": """\
--label-from parent takes the name of the folder a sample lies in as its class.
Classes are numbered in the byte order of their names; each sample gets a part
cls with the number, and labels.json has the names.

  --label-from 'regex:^([a-z]+)_'   take the class from the key instead
  --stratify label                  give every shard the class mix of all""",
    "junk": """\
What operating systems, editors and tools leave among the files is left out and
counted: .DS_Store, ._*, Thumbs.db, __MACOSX, .git, .ipynb_checkpoints, .nfs*,
lost+found and the like. Other hidden names are left out as hidden.

  shardtool scan SRC --list junk    lists what was left out, and why
  --hidden                          takes hidden names, never junk""",
    "links": """\
Links to files and folders are followed and counted; a link that leads back to a
folder above it is left out as a loop, and one that points to nothing is an
error. Pipes, sockets and devices are never opened.

  --links skip    leave all links out
  --links error   stop at any link""",
    "no-ext": """\
The part name of a file is its extension. A file without one has no part name
and is left out, counted as no_extension.

  --no-ext data   pack such files as part data""",
}
