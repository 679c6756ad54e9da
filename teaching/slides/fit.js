// A slide that is too full gets smaller letters; a listing that does not fit even so is scrolled, in readable ones.
const SMALLEST = 50; // percent
const SCROLLED = 70;
const STEP = 5;

function overflows(slide) {
  return slide.scrollHeight > slide.clientHeight || slide.scrollWidth > slide.clientWidth;
}

function fit(slide) {
  for (let percent = 100; percent >= SMALLEST; percent -= STEP) {
    slide.style.fontSize = `${percent}%`;
    if (!overflows(slide)) return;
  }
  slide.style.fontSize = `${SCROLLED}%`;
}

Reveal.on("ready", (event) => fit(event.currentSlide));
Reveal.on("slidechanged", (event) => fit(event.currentSlide));
Reveal.initialize({ width: 1280, height: 720, margin: 0.02, center: false, controls: false, hash: true, slideNumber: "c/t",
                    transition: "none" });
