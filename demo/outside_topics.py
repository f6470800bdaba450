"""Questions that the corpus cannot answer: other subjects, talk, requests and sums. One question per line."""

from __future__ import annotations

OTHER_TOPIC = """
How long should I boil an egg if I want a soft yolk?
what temperature do you roast a whole chicken at
Can I replace buttermilk with yogurt in pancakes?
how do I keep guacamole from turning brown
What is the difference between baking soda and baking powder when I make muffins?
Who won the men's singles final at Wimbledon in 2008?
how many players are on a volleyball team
What is the offside rule in football?
record for most goals in a single world cup
How long is a marathon?
What does "force majeure" mean in a contract?
can my landlord keep my deposit if I painted the walls
How do I register a trademark for a small bakery?
is a verbal agreement legally binding
What is the difference between a misdemeanor and a felony?
How do I undo the last commit in git but keep my changes?
why does my docker container exit immediately
What is the difference between a process and a thread?
python list comprehension with if else
How can I speed up a slow join on two large tables?
css center a div vertically
What are the early symptoms of appendicitis?
can i take ibuprofen and paracetamol together
How many hours of sleep does a six-year-old need?
What is a normal resting heart rate for an adult?
why do my knees click when i climb stairs
Who directed the film Casablanca?
best order to watch the star wars movies
Which actress played the main role in Amélie?
how long is the extended version of the lord of the rings
Who painted Girl with a Pearl Earring?
What is the plot of Pride and Prejudice?
who wrote one hundred years of solitude
How many strings does a cello have?
Which key has three sharps?
What is the tempo of a Viennese waltz?
How often should I water a snake plant?
when to prune apple trees
Why are the leaves of my tomato plants curling?
how long do cats live
Do octopuses really have three hearts?
What do hedgehogs eat in winter?
How does a fixed-rate mortgage differ from a variable one?
what is compound interest
How do I file my taxes if I moved halfway through the year?
When did the Western Roman Empire fall?
Who was the first woman to fly solo across the Atlantic?
what caused the great fire of london
How do noise-cancelling headphones work?
why is my car making a squealing noise when i brake
What tyre pressure should I use for a road bike?
how do I knit a sleeve without a seam
"""

CHIT_CHAT = """
how are you today?
What's up?
I'm so bored right now
did you sleep well
Tell me, do you like Mondays?
it's raining again and I forgot my umbrella
I had the best sandwich of my life today
My dog ate my homework, can you believe it?
lol that's funny
ok cool
you're pretty smart, you know
I don't think my boss likes me very much
guess what happened to me on the bus this morning
I can't decide what to wear tonight
Do you ever get lonely?
haha no way
I finally finished painting the kitchen!
my week has been a complete mess
Are you having a good day so far?
I just wanted to talk to someone for a minute
What are you doing this weekend?
the neighbours are so loud tonight, I can hear every single word of their argument
I think I'm getting a cold
do you want to hear a secret?
well, that was awkward
I miss my grandmother's cooking
hmm, let me think about that
My flight got cancelled and now I'm stuck at the gate
you won't believe who I met at the gym
never mind
"""

GREETING = """
hello
Hi there!
hey
good morning
Good evening, everyone.
Thanks!
thank you so much, that helped a lot
Many thanks for your help
bye
See you tomorrow!
Hello, is anybody there?
good night
cheers mate
Thanks a million, you saved my afternoon
hiya
Greetings!
Nice to meet you
Have a great weekend!
ty
Welcome back!
Happy new year!
take care
"""

ASSISTANT = """
Who are you?
what is your name
Are you a human or a machine?
Who built you?
which language model are you running on
How old are you?
Can you see what I typed yesterday?
do you store my questions
What can you help me with?
How many languages do you speak?
are you conscious
Where does your knowledge come from?
when was your training data last updated
How do you decide whether to look something up?
Do you make mistakes?
what's your favourite colour
Can you browse the web?
How many people are using you right now?
are you better than other chatbots
Do you have feelings?
how much does it cost to run you
Can you remember my name if I tell you?
Which company owns you?
why are you so slow today
Can you hear me through the microphone?
What are your limits?
do you ever say no to a question
Are you allowed to tell me how you work?
How many parameters do you have?
can i install you on my phone
"""

ARITHMETIC = """
What is 17 times 23?
12 + 7 * 3
square root of 1764
What is 15% of 240?
If a train travels 180 km in 2 hours, what is its average speed?
solve x^2 - 5x + 6 = 0
How many seconds are there in a day?
convert 5 miles to kilometres
What is the next number in the series 2, 6, 12, 20, 30?
1000 divided by 8
Is 221 a prime number?
A pen and a notebook cost 2.20 together, and the notebook costs 2 more than the pen. How much is the pen?
What is 2 to the power of 16?
how many diagonals does a hexagon have
If I have three apples and give away two, how many are left?
what is the derivative of sin(x) cos(x)
What is the greatest common divisor of 84 and 126?
I roll two dice. What is the chance that the sum is 9?
99 bottles minus 13 bottles
Write 45 in binary.
how many ways can 5 people sit in a row
A shop has 31 lamps and sells all but 12. How many are left?
What is the area of a circle with radius 4?
7! = ?
Which weighs more, a pound of feathers or a pound of bricks?
What is three quarters of two thirds?
add 3/8 and 5/12
How many squares are there on a chessboard, counting all sizes?
integral of 3x^2 from 0 to 2
If yesterday was two days before Thursday, what day is it today?
"""

COMMAND = """
Write a poem about autumn leaves.
write me a cover letter for a job as a nurse
Translate "where is the train station" into Italian.
Tell me a joke about penguins.
summarise the plot of Hamlet in three sentences
Make a shopping list for a birthday party with ten children.
Set an alarm for 6:30 tomorrow morning.
play some relaxing music
Write a short story about a lighthouse keeper who is afraid of the dark.
Draw a cat.
give me five names for a new coffee shop
Turn off the lights in the living room.
Correct the grammar: "he don't like no apples"
Plan a three-day hiking trip for beginners.
rewrite this so that it sounds more polite: send me the file now
Send an email to Anna that I will be late.
Write a Python function that reverses a linked list.
Make up a riddle about a candle.
create a workout plan without equipment
Remind me to call the dentist on Friday.
sing me a lullaby
Explain recursion to a five-year-old.
Write a slogan for a bicycle repair shop.
order a large pizza with mushrooms
Compose a haiku about the sea.
list ten synonyms for happy
Count backwards from twenty.
Draft a speech for my sister's wedding, about two minutes long, warm but not too sentimental.
book me a table for two at eight
Pretend you are a pirate and greet me.
"""

KINDS = {
    "other-topic": OTHER_TOPIC,
    "chit-chat": CHIT_CHAT,
    "greeting": GREETING,
    "assistant": ASSISTANT,
    "arithmetic": ARITHMETIC,
    "command": COMMAND,
}
