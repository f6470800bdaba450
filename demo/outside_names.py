"""Questions that look like the corpus but have no answer in it, other languages, and gibberish. One per line."""

from __future__ import annotations

MADE_UP_ENTITY = """
What is the capital of Zubrovia?
capital of tarvonia
Name the capital city of Ostrelund.
Which country has the capital Velmaroth?
What is the currency of Qandoristan?
what money do they use in Belvary
Which three-letter code stands for the currency of Marundia?
On which continent is Sorvenia?
Is Kaldurra in Africa or in Asia?
Which country borders Ilvermark to the north?
Name a neighbour of Pandoria.
What is the main language of Trezgovina?
which language do most people speak in Lumbaku
What is the internet domain of Vastonia?
What is the international calling code of Norrabia?
country code for calling gelmania from abroad
How many people live in Drusland?
What place does Okrania take in a list of the countries by population?
By area, where does Hestovia rank in the world?
Which country is the city of Parundel in?
In which country would you find Kesrabad?
where is the city of molvanik
Which U.S. state is the city of Quillford Springs in?
In which state is Grendon Falls?
How many people live in the city of Tashmirov?
Which city is nearest to San Oregundo?
On the map, at which latitude does Brindelhaven lie?
Which country has the largest city called Umbarique?
What is the symbol of the element dravonium?
chemical symbol for kelthium
Which element has the symbol Qz?
What is the atomic number of sorbidium?
how many protons does an atom of tarnium have
What does Vx stand for in the periodic table?
What is the atomic weight of velorium?
At how many degrees Celsius does brastium melt?
At what temperature does oskrium boil?
Is jorvium a solid or a gas at room temperature?
Who discovered the element pralium?
In which year was quandrium discovered?
What is the element fenbergium named after?
Which family of elements does ulvonium belong to?
In which group of the periodic table is mordasium?
what period is zintarium in
Which element comes right after hexalium in the periodic table?
My teacher said the capital of Sandoria moved last century. What is it called now?
I found an old coin from Lestavia, which currency is that?
Which cities besides the capital are there in Umbrakistan?
What is the capital of the Republic of North Calembria?
Tell me the calling code and the internet domain of the Tirrel Islands.
"""

FICTION = """
What is the currency of Mordor?
What is the capital of Wakanda?
capital of gondor
Which continent is Westeros's neighbour across the Narrow Sea?
Who rules Narnia after the White Witch?
In which state is Springfield, where the Simpsons live?
what is the chemical symbol of kryptonite
What is the atomic number of vibranium?
Who discovered adamantium?
What is the melting point of unobtanium?
Which country is Gotham City in?
How many people live in Hobbiton?
what language do they speak in klendathu
What is the capital of Genovia?
Which language is spoken in Rohan?
How many districts does Panem have?
What is the currency used by wizards in Harry Potter?
Where is Hogwarts?
On which planet is Mos Eisley?
What is the population of Atlantis?
Which country borders Latveria?
who is the king of arendelle
What is the capital of Panem?
In which country is Castle Rock, the town of Stephen King's stories?
What is the main export of Arrakis?
How far is Rivendell from the Shire?
What is the internet domain of Freedonia?
capital of the planet coruscant
What is Beskar made of?
Which sea lies around Earthsea's island of Gont?
Who founded Rapture in BioShock?
What is the largest city of Skyrim?
which kingdom does princess peach rule
How many people live in Twin Peaks, according to the sign?
What is the official language of Ruritania?
Is mithril heavier than steel?
what currency do they use in the hunger games
"""

UNSTATED_RELATION = """
Who is the president of France?
who is prime minister of canada right now
What is the national anthem of Italy called?
What is the GDP of Japan?
In which time zone is Kenya?
what time is it in Argentina
What colours are on the flag of Estonia?
When did India become independent?
What is the highest mountain in Peru?
Which river flows through most of Egypt?
What is the national dish of Hungary?
Which side of the road do they drive on in Cyprus?
do I need a visa for Vietnam
What is the life expectancy in Norway?
national animal of Bhutan
How many provinces does Angola have?
What is the unemployment rate in Spain?
Which religion is the most common in Indonesia?
Which plug sockets are used in Brazil?
When does school start in Finland?
Who is the national football coach of Uruguay?
What is the minimum wage in Luxembourg?
best month to visit Iceland
How many World Cups has Germany won?
Who is the mayor of Chicago?
When was the city of Shanghai founded?
What is the code of the airport of Mumbai?
How many metro lines does Guangzhou have?
what's the weather like in Los Angeles in march
Which football clubs come from Milan?
What is the most famous museum in New York City?
Which river flows through Cologne?
average rent in Sydney for two rooms
How high above sea level is Medellín?
Which university is the oldest in Osaka?
What are the people of Liverpool called?
What does gold cost per kilogram?
price of lithium per ton
What colour is the flame of burning potassium?
How many stable isotopes does tin have?
What is the half-life of the longest-lived isotope of radium?
how hard is chromium on the Mohs scale
What is the crystal structure of iron?
Which mines produce the most cobalt?
What is aluminum used for in aircraft?
is mercury dangerous if a thermometer breaks
Which foods contain a lot of zinc?
What are the oxidation states of manganese?
How well does copper conduct electricity?
Which medicines contain platinum?
How much neon is there in the air?
What is the specific heat capacity of lead?
"""

OTHER_LANGUAGE = """
東京で一番おいしいラーメン屋はどこですか？
明日の天気を教えてください。
日本語の敬語はどうやって勉強すればいいですか
红烧肉怎么做？
谁写了《红楼梦》？
我怎样才能学会弹吉他
手机充不进电怎么办？
كيف أتعلم السباحة بسرعة؟
من كتب رواية أولاد حارتنا؟
ما هي فوائد شرب الماء في الصباح
Как приготовить борщ без мяса?
Кто написал роман «Преступление и наказание»?
почему кошки мурлыкают
Сколько стоит билет в кино?
मैं अपना वजन कैसे कम करूँ?
क्रिकेट में एक ओवर में कितनी गेंदें होती हैं?
आज मौसम कैसा है
วิธีทำต้มยำกุ้งทำอย่างไร
ทำไมแมวชอบนอนกลางวัน
김치찌개는 어떻게 끓여요?
한국 드라마 추천해 주세요
컴퓨터가 갑자기 꺼졌어요
Πώς φτιάχνω σπιτικό γιαούρτι;
Ποιος έγραψε την Οδύσσεια;
¿Cómo se prepara una tortilla de patatas?
quién ganó el partido de anoche
¿Cuál es la mejor manera de quitar una mancha de vino?
¿Cuántas cuerdas tiene una guitarra?
Wie entferne ich Kalk aus dem Wasserkocher?
Wer hat „Die Verwandlung“ geschrieben?
was kostet ein gebrauchtes fahrrad
Comment faire une pâte à crêpes sans grumeaux ?
Qui a peint Les Nymphéas ?
à quelle heure ferme la boulangerie
Come si cucina la carbonara senza panna?
chi ha scritto i promessi sposi
Como faço para trocar um pneu furado?
Qual é o enredo de Dom Casmurro?
Hoe lang moet ik aardappelen koken?
Jak usunąć plamę z kawy?
Hur lär man en hund att sitta?
Miten teen karjalanpiirakoita?
Türk kahvesi nasıl yapılır?
Làm sao để nấu phở bò ngon?
Bagaimana cara membuat nasi goreng?
איך מכינים חומוס בבית?
چطور می‌توانم بهتر بخوابم؟
Як навчити дитину їздити на велосипеді?
আমি কীভাবে দ্রুত টাইপ করতে শিখব?
நான் எப்படி இட்லி செய்வது?
როგორ მოვამზადო ხაჭაპური?
Ninawezaje kupika ugali?
"""

GIBBERISH = """
asdf qwer
lkjhgfdsa
blorp fnord zizzle
qqqqqqqqqq
fghj fghj fghj
xkcd wvut srqp onml
the of which by into seven purple
hdjskahdjksahd?
mmmmmmmphhh
zxcvbnm,./
banana window therefore running slowly
oiuyt rewq
abcabcabcabc
snorf gleeb wug dax
table table table table
1q2w3e4r5t
floo ploo shmoo
why the because how if
grmbl
capital symbol of the of number
wertz uiop asdf
tgbnhy tgbnhy
larum ibsem doler
square bread thinks loudly under tuesday
ajsdklf ajskldf jaklsdf ajkls dfjakl
teh teh hte eth
vvvvv bbbbb nnnnn
element country city element country city
pqowieur
ghoti fsh fhs
"""

KINDS = {
    "made-up-entity": MADE_UP_ENTITY,
    "fiction": FICTION,
    "unstated-relation": UNSTATED_RELATION,
    "other-language": OTHER_LANGUAGE,
    "gibberish": GIBBERISH,
}
