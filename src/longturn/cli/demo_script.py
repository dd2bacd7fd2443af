"""What the user says in `longturn demo`: a long text first, then questions about it."""

from __future__ import annotations

NOTES = """\
FIELD NOTES FROM SKARHOLM, SUMMER COUNT

3 June. Landed at Skarholm at nine in the morning after two hours in the mail boat. The island is one mile long and \
half a mile wide, all grey granite and thin grass, with the old lighthouse on the western cliff and a single hut by \
the landing. The lighthouse has not been lit for thirty years, but the lantern room is dry and gives a view of every \
nesting ledge. I will sleep in the hut and count from the tower. Stores for seven weeks: oats, rice, tinned fish, \
coffee, lamp oil, two sacks of coal. The boatman, Anders, will come every second Friday if the sea allows.

5 June. First full count. Kittiwakes: 412 nests on the north face. Puffins: hard to number, they come and go, but I \
put them at 900 pairs in the turf above the landing. Guillemots: about 1,500 birds on the low shelves. Two pairs of \
ravens on the tower itself, who were here long before me and let me know it. Wind from the south-west, mild, the sea \
like slate.

8 June. Built a hide from driftwood and a torn sail near the puffin slope. They accepted it within an hour. They \
carry sand eels crosswise in the beak, never fewer than four. I counted one with eleven. Fog in the evening; the \
foghorn of a passing coaster answered itself off the cliff three times.

11 June. The spring behind the hut is running thin. I dug it out to the depth of my arm and lined it with flat \
stones, and by evening it gave a bucket in ten minutes, which is enough for one person and a kettle.

14 June. Anders came with letters, potatoes and a wireless battery. He brought his niece Maren, who is twelve and \
wants to be a botanist. She found sea campion, thrift, scurvy grass and, in a crack by the tower door, one plant of \
roseroot, which no list of the island has. I have written it down as hers. They left before the tide turned.

18 June. Kittiwake chicks in 61 of the 412 nests. One nest in ten is empty now; the great black-backed gulls patrol \
the ledges at dawn. The ravens chase the gulls from the tower but not from the north face, so the safe ledges are \
those within sight of the ravens. I have drawn a map in red and blue pencil to see if the pattern holds.

21 June. The longest day. I read the small print of a seed catalogue outdoors at midnight without a lamp. Sea flat \
calm. At two in the morning a minke whale breathed just below the landing, so close that I smelt fish.

24 June. The wireless is dead. It is not the battery: salt has eaten the aerial lead where it passes the window \
frame. I have no wire to spare except the copper wire that I use to mark burrows.

25 June. Mended the aerial with four metres of the copper wire and a cork for an insulator. The forecast came through \
at six: deep low west of the islands, gale warning for tomorrow night. Carried the coal and the oats up to the tower.

27 June. The storm. It began at ten last night from the north-west and by midnight the spray came over the hut. I \
moved to the lantern room with a blanket and the notebooks. Around three a sea broke over the landing and took the \
mail boat's mooring post, the driftwood hide and half the roof of the hut. At five it eased. Nobody is hurt, there \
being nobody here but me. The tower did not so much as hum.

28 June. Counting the damage. Hut: eleven roof slates left on the seaward side, the door gone, bedding soaked. \
Stores: rice and fish safe, potatoes drowned, coffee safe. Birds: the low guillemot shelves are swept clean, perhaps \
200 eggs lost, but the birds are already back and some will lay again. The puffins in their burrows came through dry. \
Kittiwakes lost 38 nests, nearly all on the outer third of the north face.

30 June. Made a roof out of the torn sail, held down with fishing net and stones. It drums in the wind, but it is \
tight. Slept in the hut again. The ravens have taken a spoon.

2 July. Anders came two days early because he had seen the weather. He had expected worse. He brought slates, a door \
that had belonged to a chapel, and a letter from Maren with eleven questions about roseroot. We hung the door \
together; it has a small brass fish for a handle. He would not take money for it, only a promise that I write \
down the story of the spoon.

6 July. First puffin chick at a burrow mouth, in the last light, a grey ball with a serious face, which \
looked at me, thought it over and went back inside. In the next burrow nobody was at home but a rabbit.

9 July. Third count. Kittiwakes: 374 nests standing, 290 with chicks. Guillemots: 1,350 birds. The map in red and \
blue holds: within sight of the ravens two chicks in three live, beyond it one in three. I should like to know \
whether the ravens gain anything by it or are only bad neighbours to everybody equally.

13 July. Rain for three days. I mended socks, wrote up the tables, baked flat bread of oats on the stove lid and \
answered Maren's questions, all but the seventh, which was why roseroot smells of roses, and which I do not know. \
The two plants that she asked me to measure stand at nine and eleven centimetres, and the bees have found them.

15 July. A yacht anchored under the lee for one night, a retired schoolteacher and her dog, bound for the north cape. \
She traded a jar of marmalade for an hour in the hide and told me the names of the stars that one cannot see here in \
summer. The dog lay on its back in the thrift and paid no attention to nine hundred pairs of puffins.

17 July. The young guillemots jumped tonight. They cannot fly yet; the father calls from the water, and the chick \
walks to the edge and simply steps off. I counted 240 jumps between ten and one o'clock. Two landed on rock, got up, \
shook themselves and walked into the sea.

20 July. Packed. Left for the next visitor: the chapel door, the stone-lined spring, half a sack of coal, the map in \
a tin under the third stair of the tower, and a list of what to bring: more wire, fewer potatoes, a second spoon. \
Anders is due on the morning tide. The ravens sat on the gallery rail all evening and said nothing at all.
"""

SYSTEM = "You are a friendly assistant."

QUESTIONS = (
    f"{NOTES}\n\nThese are my notes from this summer. Please summarise them in one sentence.",
    "Who is Anders?",
    "What did the storm do to the hut?",
    "Which birds live on the island?",
    "What did I make a new roof out of?",
    "What did the ravens take?",
    "Write a short postcard from the island to a friend.",
)
"""One message of the user for each turn."""

RESTART_AFTER = 4
"""So many turns are held before the server is killed."""
