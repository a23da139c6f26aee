#include "tessera/report/page.h"

namespace tessera::report {

// Eight colours that are told apart by most people with colour blindness, too, in a light and a dark set.
const char* style_sheet() {
  return R"css(
:root{--ink:#1b1f24;--soft:#5c6670;--line:#dfe3e8;--paper:#f6f7f9;--card:#fff;
--c0:#2a78d6;--c1:#e8833a;--c2:#1c9e77;--c3:#c23b5e;--c4:#7a5cc4;--c5:#a67c00;--c6:#159bb0;--c7:#8a8f98}
@media (prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#9aa4af;--line:#343b43;--paper:#14171a;--card:#1d2126;
--c0:#5aa2f5;--c1:#f2a266;--c2:#3fc79b;--c3:#ee6f8f;--c4:#a78bf0;--c5:#d8b13c;--c6:#4cc6d8;--c7:#a4abb5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
header,main{max-width:1320px;margin:0 auto;padding:0 16px}
h1{font-size:22px;margin:18px 0 10px}h2{font-size:18px;margin:26px 0 8px}h3{font-size:15px;margin:0 0 8px}
h4{font-size:13px;margin:10px 0 4px;color:var(--soft);font-weight:600}
.cards{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));align-items:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;margin:0 0 14px;min-width:0}
.cards>.card{margin:0}
svg{display:block;width:100%;height:auto}
svg.tiles,svg.confusion{max-width:460px}
.wide{overflow-x:auto}.wide>svg.timeline{min-width:680px}.wide>svg.bars{min-width:420px}
.axis{font-size:11.5px;fill:var(--soft)}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
.k0{--c:var(--c0)}.k1{--c:var(--c1)}.k2{--c:var(--c3)}.k3{--c:var(--c4)}.k4{--c:var(--c2)}
.curve{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.faint{opacity:.25;stroke-width:1}.dashed{stroke-dasharray:5 4;stroke-width:1.5}
circle,.part,.action,.band{fill:var(--c)}
.action{stroke:var(--card);stroke-width:.6}
.inside{fill:#fff;font-size:10.5px;text-anchor:middle;pointer-events:none}
.band{opacity:.3}.band-name{font-size:11px;fill:var(--ink)}
.idle{fill:var(--line);opacity:.55}
.spread{stroke:var(--ink);stroke-width:1.2;opacity:.6}
.tile{fill:none;stroke:#fff;stroke-width:2;paint-order:stroke;filter:drop-shadow(0 0 1px #000)}
.on-image{fill:#fff;font-size:13px;text-anchor:middle;paint-order:stroke;stroke:#000;stroke-width:3px;stroke-opacity:.6}
.cell{fill:color-mix(in srgb,var(--card),var(--c) calc(4% + 92%*var(--share)))}
.cell{stroke:var(--line);stroke-width:.5}.good{--c:var(--c0)}.bad{--c:var(--c3)}
.count{font-size:11px;text-anchor:middle;fill:var(--ink);pointer-events:none}.count.light{fill:#fff}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;margin:6px 0;font-size:13px;color:var(--soft)}
.legend i,th i{display:inline-block;width:10px;height:10px;border-radius:2px;background:var(--c);margin-right:5px}
.note{color:var(--soft);font-size:13px;margin:6px 0 0}
table{border-collapse:collapse;background:var(--card);font-size:14px;width:100%}
th,td{border:1px solid var(--line);padding:5px 9px;text-align:left;white-space:nowrap}
thead th{color:var(--soft);font-weight:600;font-size:12.5px}
tbody th{font-weight:600}
details{margin:10px 0}article{margin:22px 0}article>.cards{margin-bottom:14px}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:8px 10px;font-size:12.5px;margin:4px 0}
.switch{color:var(--soft);margin:0 0 10px}
button{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:4px 12px;margin-left:6px;cursor:pointer}
button.on{border-color:var(--c0);color:var(--c0);font-weight:600}
.by-time{display:none}body.time .by-time{display:block}body.time .by-step{display:none}
.cursor{stroke:var(--soft);stroke-width:1;visibility:hidden}
#tip{position:fixed;pointer-events:none;background:var(--card);color:var(--ink);border:1px solid var(--line);
border-radius:6px;padding:5px 8px;font-size:12.5px;box-shadow:0 2px 8px #0003;visibility:hidden;z-index:9;max-width:80vw}
#tip b{color:var(--c)}
.samples{display:grid;gap:10px;grid-template-columns:repeat(auto-fill,minmax(104px,1fr))}
figure{margin:0;font-size:12.5px;border:2px solid var(--line);border-radius:8px;overflow:hidden;background:var(--card)}
figure.right{border-color:var(--c2)}figure.wrong{border-color:var(--c3)}
figure span{position:relative;display:block}
figure img{display:block;width:100%;image-rendering:auto}
figure .mask{position:absolute;inset:0;height:100%;opacity:.5;image-rendering:pixelated}
figcaption{padding:4px 6px;overflow-wrap:anywhere;min-height:1.6em}
@media (max-width:520px){header,main{padding:0 10px}.card{padding:10px}}
)css";
}

// What is under the pointer, the switch between steps and time, and with --watch a fresh page while the run goes on.
const char* script() {
  return R"js(
"use strict";
const tip=document.body.appendChild(document.createElement("div"));tip.id="tip";
const show=(n)=>Math.abs(n)>=1e-3&&Math.abs(n)<1e6?String(+n.toPrecision(5)):n.toExponential(2);
function hide(){tip.style.visibility="hidden";document.querySelectorAll(".cursor").forEach(c=>c.style.visibility="hidden");}
document.addEventListener("pointermove",e=>{
  const chart=e.target.closest&&e.target.closest("svg.chart");hide();if(!chart)return;
  const data=chart.parsed||(chart.parsed=JSON.parse(chart.dataset.series));
  const box=chart.getBoundingClientRect(),px=(e.clientX-box.left)/box.width*440;
  const low=+chart.dataset.low,high=+chart.dataset.high,x=low+(px-48)/(440-70)*(high-low);
  let nearest=null;const rows=[];
  for(const s of data.series){
    let best=0;for(let i=1;i<s.x.length;i++)if(Math.abs(s.x[i]-x)<Math.abs(s.x[best]-x))best=i;
    if(!s.x.length)continue;
    rows.push([s,best]);if(nearest===null||Math.abs(s.x[best]-x)<Math.abs(nearest-x))nearest=s.x[best];
  }
  if(nearest===null)return;
  tip.replaceChildren();tip.append(data.unit+" "+show(nearest));
  for(const [s,i] of rows){const line=document.createElement("div");line.className="s"+s.colour%8;
    const value=document.createElement("b");value.textContent=show(s.y[i]);line.append(value," "+s.name);tip.append(line);}
  const cursor=chart.querySelector(".cursor"),at=48+(nearest-low)/(high-low)*(440-70);
  cursor.setAttribute("x1",at);cursor.setAttribute("x2",at);cursor.style.visibility="visible";
  tip.style.visibility="visible";
  tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+"px";
  tip.style.top=Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8)+"px";
});
document.addEventListener("click",e=>{
  const by=e.target.dataset&&e.target.dataset.by;if(!by)return;
  document.body.classList.toggle("time",by==="time");
  document.querySelectorAll("[data-by]").forEach(b=>b.classList.toggle("on",b.dataset.by===by));
});
if(document.body.dataset.watch)setInterval(async()=>{
  try{
    const text=await (await fetch(location.href,{cache:"no-store"})).text();
    const fresh=new DOMParser().parseFromString(text,"text/html").querySelector("main");
    const old=document.querySelector("main");
    if(!fresh||fresh.innerHTML===old.dataset.html)return;
    const open=old.querySelector("details[open]")!==null,time=document.body.classList.contains("time");
    const html=fresh.innerHTML;old.innerHTML=html;old.dataset.html=html;
    if(open)old.querySelectorAll("details").forEach(d=>d.open=true);
    old.querySelectorAll("[data-by]").forEach(b=>b.classList.toggle("on",(b.dataset.by==="time")===time));
  }catch(_){/* the run's machine is busy, or the server has ended: the page stays as it is */}
},2000);
)js";
}

}  // namespace tessera::report
