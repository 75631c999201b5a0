"""Units: what structured pruning removes. A filter, channel, neuron or attention head
with all that belongs to it.

    for group in tersify.units.find_units(model, example):
        group.name, group.kind, group.size      # 'layer1.0.conv1', 'filter', 64
        group.producers                         # rows that vanish: conv and linear weights
        group.followers                         # biases, γ, β and running statistics that go with them
        group.consumers                         # the columns of the next layers that read them
        group.carriers                          # modules whose outputs to multiply by a mask, and along which dim
        group.coupled                           # several producers: units that meet in an addition go together

A `Member` says which indices along `dim` of the tensor `name` belong to which unit:
`member.unit[i]` is the unit of index i, or -1. To score units, reduce a producer over
its other dimensions and `index_add` by `unit`; to mask, `member.over(tensor, alive)`
broadcasts one value per unit over the tensor. `group.silence_(model, dead)` zeroes
units so that they give exactly 0; `tersify.shrink` then takes them out.

Layers whose outputs leave the model, or pass through something that mixes units (layer
norm, an unknown operation, a size written into the program), are in no group. Packed
nn.MultiheadAttention has heads but no carriers.
"""

from tersify.units.groups import Carrier, Member, UnitGroup, find_units
from tersify.units.trace import Example

__all__ = ["Carrier", "Example", "Member", "UnitGroup", "find_units"]
