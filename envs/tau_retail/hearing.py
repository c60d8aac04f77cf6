"""Recognise in an agent's text what the scripted customer reacts to: questions, requests to agree, refusals."""

import re

TOPICS = {
    "identity": re.compile(
        r"e-?mail|\bzip|your (full |first |last )?name|identi|authenticat|verify|who (am i|are you)"
    ),
    "order": re.compile(r"order (id|number|no\b)|(which|what) orders?\b"),
    "reason": re.compile(r"\breasons?\b|\bwhy\b"),
    "items": re.compile(r"\bitems?\b|\boptions?\b|\bvariants?\b|(which|what) products?\b|colou?r|\bsize\b"),
    "payment": re.compile(r"payment|refund|\bcards?\b|paypal|\bpay\b"),
    "address": re.compile(r"(?<!email )\baddress\b|\bstreet\b|\b(ship|deliver|send) (it|this|the order|them) to\b"),
}
GO = r"(?:proceed|continue|go ahead|move forward|carry on)"
DO = (
    r"(?:cancel|process|submit|make|update|change|return|exchange|refund|apply|start|place|modify|finali[sz]e|"
    r"do (?:this|that|it))"
)
FINE = (
    r"(?:ok|okay|fine|alright|all right|right|correct|accurate|good|acceptable|in order|(?:as|what) you (?:want|had))"
)
GLAD = r"(?:ok|okay|fine|alright|all right|good|sure|happy|ready|comfortable)"
FACT = (  # what the agent asks for when it says "please confirm your email"
    r"(?:which|what|who|when|where|how|me your|(?:the|your) (?:\w+ )?(?:name|e-?mail|zip|identity|order (?:number|id)|"
    r"id|reason|address|payment method|items)\b(?! (?:change|update)))"
)
BEGINS = re.compile(  # words about a beginning that ask nothing: "To proceed, I need ...", "I will go ahead"
    rf"(?:^|[.,;:!?]\s+|\b(?:order|need|information|details|number|id|it) )to {GO}"
    rf"|\b(?:before|until|so|and|then|when|that) (?:i|we) (?:can |could |may |will )?{GO}"
    rf"|\b(?:can ?not|can't|unable to|able to|won't|will not) (?:be able to )?{GO}"
    rf"|\b(?:i will|i'll|let me|i am going to|i'm going to) (?:now |then |just |first )?{GO}"
)
AGREE = (
    r"\b(?:reply|say|answer|respond|write|type|clear|simple|explicit)(?: with| a| me)* ?:? ?[\"']?yes\b",
    r"\byes[\"']?(?: or | ?/ ?)[\"']?no\b|\ba [\"']?yes[\"']? from you\b",
    r"\b(?:want|like|wish|prefer|happy for|fine for|ok for|okay for|ready for|authori[sz]e) me to\b",
    r"\b(?:shall|should) (?:i|we)\b(?! (?:ask|know|need))",
    r"\bif (?:i|we) should\b",
    rf"\b(?:may|can|could) (?:i|we) (?:please |now |then |just )*(?:{GO}|{DO})\b",
    rf"\b{GO}\b",
    r"\b(?:do|would|will|can|could|if) you (?:please |kindly |all )?"
    rf"(?:agree|approve|consent|accept|confirm)\b(?! {FACT})",
    rf"\b(?:do|would) you (?:really |still )?(?:want|like|wish) to (?:confirm|{DO})\b(?! (?:any|some))",
    r"\b(?:is|are|does|do|if) (?:this|that|it|these|those|everything|all|the|my|our)\b[^?,]{0,60}"
    rf"\b(?:{FINE}|works?|suits?)\b",
    r"\bwould (?:that|this|it) (?:be|work|suit)\b",
    r"\bwould you like (?:that|this|it)\b",
    r"\bpermission to\b|\bgreen light\b|\blet me know and i\b|\bjust say\b",
    rf"\bare you {GLAD}\b|\bready to {DO}\b",
    rf"\b(?:everything|all|sounds?|looks?) {FINE}\s*\?$|\bhow does (?:that|this|it) (?:sound|look)\b",
    rf"\b(?:please|kindly|to) verify (?:that|if|whether)\b[^?,]{{0,60}}\b{FINE}\b",
    rf"\bif you(?:'re| are) {GLAD}\b",
    rf"\bif (?:that|this|it)'s {FINE}\b",
    rf"\b(?:please|kindly|you to|and|or|just|simply|to) confirm\b(?! {FACT})",
    r"\b(?:once|when|if|until|after) you(?:'ve| have)? (?:confirm(?:ed)?|agreed?|approved?)\b",
    r"\byour (?:\w+ )?(?:confirmation|approval|consent|agreement|permission|go-ahead|ok|okay)\b",
    r"\b(?:ok|okay|alright|all right|agreed|correct|right|fine|yes|sounds good)\s*\?$",
)
REFUSAL = (
    r"(?:can|could) ?not\b",
    r"(?:can|couldn|won)'?t\b",
    r"\bunable|\bunavailable|\bimpossible|\bineligible|\bnot (?:\w*able|our policy)\b",
    r"\b(?:deny|denied|refuse|decline|reject)\b|\bnot authori[sz]ed\b|\bprohibit|\bforb[ia]d|\bviolat",
    r"\bunfortunately\b|\bsorry,? but\b|\bi(?:'m| am) afraid\b",
    r"(?:not|n't|no longer) (?:\w+ )?(?:possible|allowed|permitted|available|eligible|accepted|supported)\b",
    r"(?:not|n't) (?:\w+ )?(?:allow|permit|accept|offer|support|cover|hold|enough|in stock|something (?:i|we) can)\b",
    r"(?:not|n't) (?:let (?:me|us|you)|do (?:this|that))\b|\bsay no\b|\bno other\b",
    r"(?:not|n't) have (?:that|it|this|(?:the |any )?(?:ability|permission|authority|access))\b",
    r"\bno (?:permission|authority|way to)\b|\bcan (?:no longer|only)\b|\btoo late\b|\bmust go\b",
    r"\bout of stock\b|\bsold out\b|\binsufficient\b|\b(?:already|has|is) (?:been )?shipped\b",
    r"\bagainst (?:our|the|my|shop|store|company)\b|\b(?:outside (?:of )?|beyond )(?:my|our|what)\b",
    r"\bonly (?:pending|delivered|possible|accept|allow|refund|be|able)\b|\bmust be (?:pending|delivered)\b",
    r"\b(?:reason|status) must be\b",
    r"\bonly [^.?!,]{0,30}(?:is|are) (?:accepted|allowed|possible|eligible)\b",
)
AGREE, REFUSAL = (re.compile("|".join(patterns)) for patterns in (AGREE, REFUSAL))
OPEN = re.compile(r"\b(?:which|what|when|where|who|whose|how|why)\b")  # begins a question that no yes answers
CHOICE = re.compile(r"(?<!yes) or (?![\"']?no\b|(?:not|if|is|are|would|do|does|should|let|have) |any|other)")
SENTENCES, CLAUSES = re.compile(r"(?<=[.?!])[\"')]?\s+|\n+"), re.compile(r"[,;:(\u2013\u2014]| - | and | but ")


def plain(text: str) -> str:
    """Return a text in lower case, with straight quotation marks: the form that the other functions read."""
    return text.lower().translate(str.maketrans("\u2018\u2019\u201c\u201d", "''\"\""))


def asked_topics(low: str) -> list[str]:
    """Return the topics that a text mentions."""
    return [topic for topic, pattern in TOPICS.items() if pattern.search(low)]


def asks_to_agree(low: str) -> bool:
    """Return whether a text asks a question that a yes answers, or for a confirmation."""
    return any(map(_asks, SENTENCES.split(low)))


def refuses(low: str) -> bool:
    """Return whether a text turns a wish down."""
    return bool(REFUSAL.search(low))


def _asks(sentence: str) -> bool:
    sentence = BEGINS.sub(" ", sentence.strip())
    for found in AGREE.finditer(sentence):
        before = CLAUSES.split(sentence[: found.start()])[-1]
        if not OPEN.search(before) and not CHOICE.search(sentence[found.start() :]):
            return True
    return False
